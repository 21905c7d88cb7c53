//! A builder borrows what the object will use, and is spent when it has built.

use verbs::{CompletionChannel, CompletionQueue, Context, ProtectionDomain, QpType, QueuePair};

fn domain_dropped(pd: ProtectionDomain, cq: &CompletionQueue) {
    let builder = QueuePair::builder(&pd, QpType::RC, cq, cq);
    drop(pd); //~ E0505
    let _ = builder.build();
}

fn queue_closed(pd: &ProtectionDomain, cq: CompletionQueue) {
    let builder = QueuePair::builder(pd, QpType::RC, &cq, &cq);
    let _ = cq.close(); //~ E0505
    let _ = builder.build();
}

fn built_twice(pd: &ProtectionDomain, cq: &CompletionQueue) {
    let builder = QueuePair::builder(pd, QpType::RC, cq, cq);
    let _ = builder.build();
    let _ = builder.build(); //~ E0382
}

fn channel_dropped(context: &Context, channel: CompletionChannel) {
    let builder = CompletionQueue::builder(context, 16).own_channel(&channel);
    drop(channel); //~ E0505
    let _ = builder.build();
}

fn main() {}
