mod common;
mod connecting;
mod failing;
mod faults;
mod queues;
mod regions;
mod transfer;
