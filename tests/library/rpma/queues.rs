//! Depths of queues, and waiting for completions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Need, Outcome, Pair, Targets, Test, WAIT, completed, ensure, ensure_eq, rounds, test,
};
use rpma::{ConnectionConfig, ErrorKind, Signal};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_run_without_completions_is_refused_at_the_last_slot_and_not_before",
            &[Need::Device],
            a_run_without_completions,
        ),
        test(
            "a_wait_on_the_queue_ends_at_its_deadline",
            &[Need::Device],
            waits_end,
        ),
        test(
            "one_thread_may_poll_what_another_posts",
            &[Need::Device],
            one_thread_polls,
        ),
        test(
            "everything_posted_until_the_queues_are_full_completes_after_the_end",
            &[Need::Device],
            full_until_the_end,
        ),
        test(
            "two_threads_that_wait_for_completions_get_one_each_at_once",
            &[Need::Device],
            two_waiters,
        ),
        test(
            "a_completion_queue_that_could_overrun_is_refused_with_the_size_needed",
            &[Need::Device],
            a_queue_that_could_overrun,
        ),
    ]
}

fn a_run_without_completions() -> Outcome {
    for sq_size in [1, 2, 10, 33] {
        let mut config = ConnectionConfig::default();
        config.set_sq_size(sq_size);
        let pair = Pair::with(&config)?;
        let targets = Targets::new(&pair, 64)?;
        let write = |signal, n| {
            pair.client.write(
                targets.of_server.as_span(),
                targets.client.as_span(),
                signal,
                n,
            )
        };
        for round in 0..3 {
            for n in 1..u64::from(sq_size) {
                write(Signal::OnError, n)
                    .map_err(|e| format!("depth {sq_size}, round {round}, {n} of the run: {e}"))?;
            }
            let error = write(Signal::OnError, 99)
                .err()
                .ok_or("the last slot was taken")?;
            ensure_eq!(
                error.kind(),
                ErrorKind::QueueFull,
                "depth {sq_size}: {error}"
            );
            ensure_eq!(error.code(), -100_007, "depth {sq_size}: {error}");
            write(Signal::Always, 100)?;
            // The only completion is that of the last, and it frees the whole run.
            ensure_eq!(completed(pair.client.cq())?.op_context(), 100, "completion");
            ensure!(
                pair.client.cq().poll_one()?.is_none(),
                "a completion that nobody asked for"
            );
        }
    }
    Ok(())
}

fn waits_end() -> Outcome {
    let pair = Pair::new()?;
    let cq = pair.client.cq();
    for limit in [Duration::ZERO, Duration::from_millis(300)] {
        type Wait = fn(&rpma::CompletionQueue, Duration) -> Result<(), rpma::Error>;
        let waits: [Wait; 2] = [
            |cq, limit| cq.next(limit).map(drop),
            |cq, limit| cq.wait(limit),
        ];
        for wait in waits {
            let start = Instant::now();
            let error = wait(cq, limit).err().ok_or("a completion from nowhere")?;
            let took = start.elapsed();
            ensure_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            ensure_eq!(error.code(), -100_005, "{error}");
            ensure!(
                took >= limit && took < limit + Duration::from_millis(500),
                "{limit:?} took {took:?}"
            );
        }
    }
    // Both see what comes later.
    let targets = Targets::new(&pair, 64)?;
    for n in 0..20 {
        pair.client.write(
            targets.of_server.as_span(),
            targets.client.as_span(),
            Signal::Always,
            n,
        )?;
        cq.wait(WAIT)?;
        let mut got = 0;
        let end = Instant::now() + WAIT;
        // The event may have been for the completion before.
        while got == 0 && Instant::now() < end {
            while let Some(completion) = cq.poll_one()? {
                ensure_eq!(completion.op_context(), n, "order");
                got += 1;
            }
        }
        ensure_eq!(got, 1, "completions of write {n}");
    }
    Ok(())
}

fn one_thread_polls() -> Outcome {
    const DEPTH: u64 = 32;
    let mut config = ConnectionConfig::default();
    config.set_sq_size(u32::try_from(DEPTH)?);
    let pair = Pair::with(&config)?;
    let targets = Targets::new(&pair, 64)?;
    let count = rounds(500, 20_000) as u64;
    let cq = pair.client.cq().clone();
    let polled = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&polled);
    let poller = thread::spawn(move || {
        for n in 0..count {
            let completion =
                completed(&cq).map_err(|e| e.message().unwrap_or_default().to_owned())?;
            if completion.op_context() != n {
                return Err(format!(
                    "completion {} instead of {n}",
                    completion.op_context()
                ));
            }
            seen.store(n + 1, Ordering::Release);
        }
        Ok(())
    });
    let end = Instant::now() + Duration::from_secs(50);
    for n in 0..count {
        // A device may take more than the depth once it is done with the first, so the depth is
        // for the poster to keep.
        while n - polled.load(Ordering::Acquire) >= DEPTH && !poller.is_finished() {
            ensure!(Instant::now() < end, "nothing more completes at write {n}");
            thread::yield_now();
        }
        let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
        pair.client.write(to, from, Signal::Always, n)?;
    }
    poller.join().map_err(|_| "the polling thread panicked")??;
    Ok(())
}

fn full_until_the_end() -> Outcome {
    // SoftRoCE grants what was asked and takes more: up to the next power of two, less one.
    for (sends, receives) in [(1, 14), (10, 10), (16, 16), (7, 7)] {
        let mut config = ConnectionConfig::default();
        config.set_sq_size(sends).set_rq_size(receives);
        let pair = Pair::with(&config)?;
        let targets = Targets::new(&pair, 64)?;
        let span = targets.client.as_span();
        let mut posted = Vec::new();
        let mut fill = |post: &dyn Fn(u64) -> Result<(), rpma::Error>, from: u64| -> Outcome {
            for n in from.. {
                match post(n) {
                    Ok(()) => posted.push(n),
                    Err(error) => {
                        ensure_eq!(error.kind(), ErrorKind::QueueFull, "{error}");
                        return Ok(());
                    }
                }
            }
            Ok(())
        };
        fill(&|n| pair.client.recv(span, n), 0)?;
        // Nobody receives these.
        fill(&|n| pair.client.send(span, Signal::Always, n), 1000)?;
        ensure!(
            posted.len() >= (sends + receives) as usize,
            "{sends} + {receives}: only {} were taken",
            posted.len()
        );
        pair.client.disconnect()?;
        let mut came = Vec::new();
        while came.len() < posted.len() {
            let completion = pair.client.cq().next(WAIT).map_err(|error| {
                format!(
                    "{sends} + {receives}: {} of {} came: {error}",
                    came.len(),
                    posted.len()
                )
            })?;
            ensure!(completion.result().is_err(), "{completion:?}");
            came.push(completion.op_context());
        }
        came.sort_unstable();
        ensure_eq!(came, posted, "{sends} + {receives}");
        ensure!(pair.client.cq().poll_one()?.is_none(), "one more");
    }
    Ok(())
}

fn two_waiters() -> Outcome {
    for round in 0..rounds(3, 50) {
        let pair = Pair::new()?;
        let targets = Targets::new(&pair, 64)?;
        let cq = pair.client.cq();
        for n in 0..2 {
            pair.client.recv(targets.client.as_span(), n)?;
        }
        let start = Instant::now();
        let mut came = thread::scope(|scope| {
            let wait = || {
                let completion = cq.next(WAIT).map_err(|error| error.to_string())?;
                Ok::<_, String>((completion.op_context(), start.elapsed()))
            };
            let threads = [scope.spawn(wait), scope.spawn(wait)];
            // Both receives are flushed.
            pair.client.disconnect()?;
            threads
                .into_iter()
                .map(|thread| Ok(thread.join().map_err(|_| "a waiting thread panicked")??))
                .collect::<Result<Vec<_>, harness::Failed>>()
        })?;
        came.sort_unstable();
        ensure_eq!((came[0].0, came[1].0), (0, 1), "round {round}");
        let slowest = came[0].1.max(came[1].1);
        // A lost wake-up is found within 100 ms; the rest is room for a busy machine.
        ensure!(
            slowest < Duration::from_millis(600),
            "round {round}: {slowest:?}"
        );
    }
    Ok(())
}

fn a_queue_that_could_overrun() -> Outcome {
    let mut config = ConnectionConfig::default();
    config.set_sq_size(20).set_rq_size(30).set_cq_size(49);
    let error = Pair::with(&config)
        .err()
        .ok_or("a queue of 49 entries was made for 50")?;
    let text = error.message().unwrap_or_default();
    ensure!(text.contains("49") && text.contains("50"), "{text}");
    config.set_cq_size(50);
    Pair::with(&config)?;
    Ok(())
}
