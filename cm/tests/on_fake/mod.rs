mod addresses;
mod blocking;
mod common;
mod events;
mod failing;
mod handshake;
