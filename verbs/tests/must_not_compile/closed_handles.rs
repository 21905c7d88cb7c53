//! A handle that was closed is gone; it comes back with the error when it could not be closed.

use verbs::{AddressHandle, CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair};
use verbs::{ExtendedCompletionQueue, ExtendedQueuePair, SharedReceiveQueue};

fn queue_pair(qp: QueuePair) {
    let _ = qp.close();
    let _ = qp.number(); //~ E0382
}

fn queue_pair_twice(qp: QueuePair) {
    drop(qp);
    let _ = qp.close(); //~ E0382
}

fn completion_queue(cq: CompletionQueue) {
    let _ = cq.close();
    let _ = cq.arm(); //~ E0382
}

fn region(region: MemoryRegion) {
    let _ = region.close();
    let _ = region.lkey(); //~ E0382
}

fn domain(pd: ProtectionDomain) {
    let _ = pd.close();
    let _ = pd.context(); //~ E0382
}

fn address(handle: AddressHandle) {
    let _ = handle.close();
    let _ = handle.pd(); //~ E0382
}

fn shared_receive_queue(srq: SharedReceiveQueue) {
    let _ = srq.close();
    let _ = srq.arm_limit(1); //~ E0382
}

fn extended_queue_pair(qp: ExtendedQueuePair) {
    let _ = qp.close();
    let _ = qp.queue_pair(); //~ E0382
}

fn extended_completion_queue(cq: ExtendedCompletionQueue) {
    let _ = cq.close();
    let _ = cq.queue(); //~ E0382
}

fn given_back(qp: QueuePair) {
    if let Err(failed) = qp.close() {
        let _ = failed.handle.number();
    }
}

fn main() {}
