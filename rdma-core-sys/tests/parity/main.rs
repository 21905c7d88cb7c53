//! Each inline function does what the one in the installed headers does.
//!
//! The C functions are compiled into a small shared object. Both sides then work on the same made-up objects, whose operation
//! tables hold recording functions: the calls that arrive, their arguments, the result and errno must be the same.
#![cfg(not(any(miri, rdma_fake)))]

#[path = "../common/mod.rs"]
mod common;
mod exported;
mod extended;
mod fixture;
mod helpers;
mod queries;
mod rdma_verbs;
mod record;
mod shim;
mod tables;
mod windows;
