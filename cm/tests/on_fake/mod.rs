mod addresses;
// Miri has not all of what the runtime asks of epoll.
#[cfg(all(feature = "tokio", not(miri)))]
mod asynchronous;
mod blocking;
mod common;
mod connector;
mod datagrams;
mod dispatcher;
mod events;
mod failing;
mod forgotten;
mod handshake;
mod names;
mod options;
mod own_channels;
