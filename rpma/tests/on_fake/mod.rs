mod common;
mod connecting;
mod failing;
mod faults;
mod forked;
mod queues;
mod regions;
mod transfer;
