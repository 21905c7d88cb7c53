//! Completions lie in the caller's array: they do not outlive it, nor the next poll into it.

use std::mem::MaybeUninit;

use verbs::{CompletionQueue, Deadline, WcSuccess, WorkCompletion};

fn polled_again(cq: &CompletionQueue) {
    let mut array = [const { MaybeUninit::<WorkCompletion>::uninit() }; 4];
    let first = cq.poll(&mut array).expect("polled");
    let _ = cq.poll(&mut array); //~ E0499
    let _ = first.len();
}

fn waited_after(cq: &CompletionQueue, deadline: Deadline) {
    let mut array = [const { MaybeUninit::<WorkCompletion>::uninit() }; 4];
    let first = cq.poll(&mut array).expect("polled");
    let _ = cq.wait(&mut array, deadline); //~ E0499
    let _ = first.len();
}

fn beyond_the_array(cq: &CompletionQueue) -> usize {
    let mut found: &[WorkCompletion] = &[];
    {
        let mut array = [const { MaybeUninit::<WorkCompletion>::uninit() }; 4];
        found = cq.poll(&mut array).expect("polled"); //~ E0597
    }
    found.len()
}

fn success_beyond_its_completion<'a>(completion: WorkCompletion) -> Option<WcSuccess<'a>> {
    return completion.result().ok(); //~ E0515
    #[allow(unreachable_code)]
    None
}

fn main() {}
