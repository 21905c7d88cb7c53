mod common;
mod transfer;
