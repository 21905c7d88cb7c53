//! The device follows what is posted or registered, so whoever does it has to vouch for the memory.

use verbs::{AccessFlags, Context, MemoryRegion, ProtectionDomain, QpState, QueuePair};
use verbs::{RecvRequest, SendRequest, SharedReceiveQueue};

fn register(pd: &ProtectionDomain, memory: &mut [u8]) {
    let access = AccessFlags::LOCAL_WRITE;
    let _ = MemoryRegion::register(pd, memory.as_mut_ptr(), memory.len(), access); //~ E0133
}

fn send(qp: &QueuePair, request: &mut SendRequest<'_>) {
    let _ = qp.post_send(request); //~ E0133
}

fn send_list(qp: &QueuePair, requests: &mut [SendRequest<'_>]) {
    let _ = qp.post_send_list(requests); //~ E0133
}

fn receive(qp: &QueuePair, request: &mut RecvRequest<'_>) {
    let _ = qp.post_recv(request); //~ E0133
}

fn receive_list(qp: &QueuePair, requests: &mut [RecvRequest<'_>]) {
    let _ = qp.post_recv_list(requests); //~ E0133
}

fn receive_shared(srq: &SharedReceiveQueue, request: &mut RecvRequest<'_>) {
    let _ = srq.post_recv(request); //~ E0133
}

fn receive_list_shared(srq: &SharedReceiveQueue, requests: &mut [RecvRequest<'_>]) {
    let _ = srq.post_recv_list(requests); //~ E0133
}

fn pretend(qp: &QueuePair) {
    qp.record_state(QpState::RTS); //~ E0133
}

fn adopt(raw: std::ptr::NonNull<verbs::sys::ibv_context>, owner: std::sync::Arc<()>) {
    let _ = Context::from_raw(raw, owner); //~ E0133
}

fn main() {}
