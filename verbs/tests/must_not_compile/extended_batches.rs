//! A batch is built inside of the call that posts it, and a request gets its data with the call that adds it.

use verbs::{
    AddressHandle, Batch, Error, ExtendedCompletionQueue, ExtendedQueuePair, PostError, RemoteAddr,
    SendFlags, Sge,
};

fn setter_without_a_request(batch: &mut Batch<'_>, list: &[Sge]) {
    batch.inline(b"whose?"); //~ E0599
    batch.flags(SendFlags::SIGNALED); //~ E0599
    batch.sges(list); //~ E0599
}

fn data_twice(batch: &mut Batch<'_>) -> Result<(), PostError> {
    let request = batch.send(1);
    request.inline(b"one")?;
    request.inline(b"two")?; //~ E0382
    Ok(())
}

fn registered_memory_without_unsafe(batch: &mut Batch<'_>, list: &[Sge], remote: RemoteAddr) {
    let _ = batch.send(1).sges(list); //~ E0133
    let _ = batch.write(1, remote).sges(list); //~ E0133
    let _ = batch.read(1, remote).sges(list); //~ E0133
    let _ = batch.fetch_and_add(1, remote, 1).sges(list); //~ E0133
}

fn data_where_none_belongs(batch: &mut Batch<'_>, remote: RemoteAddr) {
    let _ = batch.read(1, remote).inline(b""); //~ E0599
    let _ = batch.compare_and_swap(1, remote, 1, 2).inline(b""); //~ E0599
    let _ = batch.atomic_write(1, remote, [0; 8]).inline(b""); //~ E0599
    let _ = batch.read(1, remote).to(todo!(), 1, 2); //~ E0599
}

fn two_requests_at_once(batch: &mut Batch<'_>) {
    let one = batch.send(1);
    let _ = batch.send(2).empty(); //~ E0499
    let _ = one.empty();
}

fn address_closed(batch: &mut Batch<'_>, address: AddressHandle) {
    let request = batch.send(1).to(&address, 2, 3);
    let _ = address.close(); //~ E0505
    let _ = request.empty();
}

fn batch_taken_out(qp: &mut ExtendedQueuePair) -> Result<(), PostError> {
    let mut out: Option<&mut Batch<'_>> = None;
    let _ = out.is_none();
    qp.post_batch(|batch| {
        out = Some(batch); //~ E0521
        Ok::<_, PostError>(())
    })
}

fn posting_while_a_batch_is_built(qp: &mut ExtendedQueuePair) {
    let _ = qp.post_batch(|_| Ok::<_, Error>(drop(qp.queue_pair().query()))); //~ E0502
}

fn batch_of_another_thread(qp: &mut ExtendedQueuePair) -> Result<(), PostError> {
    qp.post_batch(|batch| {
        std::thread::scope(|scope| {
            scope.spawn(|| batch.len()); //~ E0277
        });
        Ok::<_, PostError>(())
    })
}

fn batch_shared_by_threads(qp: &ExtendedQueuePair) {
    let _ = qp.post_batch(|batch| batch.send(1).empty()); //~ E0596
}

fn queue_closed(cq: ExtendedCompletionQueue) {
    let _ = cq.close();
    let _ = cq.fields(); //~ E0382
}

fn main() {}
