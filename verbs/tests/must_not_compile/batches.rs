//! A batch belongs to the thread and the queue pair that build it, and ends where it is built.

use verbs::{AddressHandle, Batch, ExtendedQueuePair, PostError, RemoteAddr, RemoteKey, SendOps, Sge};

fn to_another_thread(batch: &mut Batch<'_>) {
    std::thread::scope(|scope| {
        scope.spawn(|| batch.send(1).empty()); //~ E0277
    });
}

fn kept(qp: &mut ExtendedQueuePair) {
    let mut kept = None;
    let _ = qp.post_batch(|batch| {
        kept = Some(batch); //~ E0521
        Ok::<_, PostError>(())
    });
    let _ = kept.map(|batch: &mut Batch<'_>| batch.len());
}

fn exchanged(one: &mut ExtendedQueuePair, other: &mut ExtendedQueuePair) {
    let _ = one.post_batch(|first| {
        other.post_batch(|second| {
            std::mem::swap(first, second); //~ E0521
            Ok::<_, PostError>(())
        })
    });
}

fn within_another(qp: &mut ExtendedQueuePair) {
    let _ = qp.post_batch(|_| qp.post_batch(|_| Ok::<_, PostError>(()))); //~ E0500 E0501
}

fn state_asked_meanwhile(qp: &mut ExtendedQueuePair) {
    let _ = qp.post_batch(|_| qp.queue_pair().query().map(drop)); //~ E0502
}

fn shared_queue_pair(qp: &ExtendedQueuePair) {
    let _ = qp.post_batch(|_| Ok::<_, PostError>(())); //~ E0596
}

fn data_without_a_request(batch: &mut Batch<'_>) {
    let _ = batch.inline(b"whose?"); //~ E0599
}

fn two_requests_at_once(batch: &mut Batch<'_>) {
    let first = batch.send(1);
    let second = batch.send(2); //~ E0499
    let _ = first.empty();
}

fn data_twice(batch: &mut Batch<'_>) {
    let request = batch.send(1);
    let _ = request.inline(b"one");
    let _ = request.inline(b"two"); //~ E0382
}

fn registered_data_without_unsafe(batch: &mut Batch<'_>, list: &[Sge], remote: RemoteAddr) {
    let _ = batch.send(1).sges(list); //~ E0133
    let _ = batch.read(2, remote).sges(list); //~ E0133
}

fn data_that_an_operation_has_not(batch: &mut Batch<'_>, list: &[Sge], remote: RemoteAddr) {
    let _ = batch.read(1, remote).inline(b""); //~ E0599
    let _ = batch.read(2, remote).empty(); //~ E0599
    let _ = batch.local_invalidate(3, RemoteKey(4)).sges(list); //~ E0599
    let _ = batch.atomic_write(5, remote, [0; 8]).inline(b""); //~ E0599
}

fn a_read_to_an_address(batch: &mut Batch<'_>, address: &AddressHandle, remote: RemoteAddr) {
    let _ = batch.read(1, remote).to(address, 2, 3); //~ E0599
}

fn address_closed(batch: &mut Batch<'_>, address: AddressHandle) {
    let request = batch.send(1).to(&address, 2, 3);
    let _ = address.close(); //~ E0505
    let _ = request.empty();
}

fn main() {
    let _ = SendOps::SEND;
}
