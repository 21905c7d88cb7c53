mod addresses;
mod blocking;
mod common;
mod dispatcher;
mod events;
mod failing;
mod handshake;
mod options;
