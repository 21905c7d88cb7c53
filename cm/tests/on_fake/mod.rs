mod addresses;
mod common;
mod events;
mod failing;
mod handshake;
