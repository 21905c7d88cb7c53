//! Numbered records that are reported when they are persistent, and what is there of them after a power cut.

use std::io::Write;

use harness::{
    Failed, Need, Outcome, Test, WAIT, completed, ensure, ensure_eq, role_argument, test,
};
use rpma::{FlushMethod, FlushType, LocalRegion, Peer, RemoteRegion, RemoteSpan, Signal, Usage};

use crate::{direct_write, gpspm, pair_with, target};

/// Bytes of a record: so many that its way takes many times as long as the report of it.
const LEN: usize = 4 << 20;
/// The next record goes to the next place, and after the last one to the first again.
const PLACES: u64 = 8;
/// So many of the last reported records are looked at. Those before may be overwritten by records whose report is lost.
const LOOKED_AT: u64 = 4;

pub(crate) fn tests() -> Vec<Test> {
    let early = what_was_cut().is_ok_and(|(way, ..)| way == "early");
    let name = if early {
        "on_pmem_a_power_cut_finds_out_reports_that_came_before_the_flush"
    } else {
        "on_pmem_all_that_was_reported_as_flushed_is_there_after_a_power_cut"
    };
    vec![test(name, &[Need::Device], after_the_cut)]
}

/// The record, which is not like any other of this round or another.
fn record(round: u64, number: u64) -> Vec<u8> {
    let fill = u8::try_from((round * 97 + number) % 251).unwrap_or_default() + 1;
    let mut bytes = vec![fill; LEN];
    bytes[..8].copy_from_slice(&round.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn offset(number: u64) -> u64 {
    number % PLACES * LEN as u64
}

/// Says to the world that the record is persistent.
fn report(number: u64) -> Outcome {
    let mut out = std::io::stdout();
    writeln!(out, "persistent {number}")?;
    Ok(out.flush()?)
}

/// Writes records one after the other, until the end of the machine.
pub(crate) fn writer() -> Outcome {
    let argument = role_argument();
    let (way, round) = argument.split_once(':').ok_or("way:round")?;
    let round = round.parse()?;
    match way {
        "gpspm" => by_the_server(round),
        "read" => by_flush(round, FlushMethod::Read, false),
        "early" => by_flush(round, FlushMethod::Read, true),
        "native" => by_flush(round, FlushMethod::Native, false),
        _ => Err(format!("no way '{way}'").into()),
    }
}

fn place(remote: &RemoteRegion, number: u64) -> Result<RemoteSpan, Failed> {
    Ok(remote.span(offset(number)..offset(number) + LEN as u64)?)
}

fn by_flush(round: u64, method: FlushMethod, early: bool) -> Outcome {
    let pair = pair_with(method)?;
    let region = target(&pair.server_peer)?;
    let remote = RemoteRegion::from_descriptor(&region.descriptor())?;
    pair.client.apply_remote_peer_config(&direct_write());
    let found = pair.client.flush_method(FlushType::Persistent);
    ensure_eq!(found, method, "method");
    let source = source(&pair.client_peer)?;
    for number in 1.. {
        source.store(0, &record(round, number))?;
        let to = place(&remote, number)?;
        pair.client
            .write(to, source.as_span(), Signal::OnError, number)?;
        pair.client
            .flush(to, FlushType::Persistent, Signal::Always, number)?;
        if early {
            report(number)?;
        }
        let completion = completed(pair.client.cq())?;
        ensure_eq!(completion.op_context(), number, "flush");
        if !early {
            report(number)?;
        }
    }
    Ok(())
}

fn by_the_server(round: u64) -> Outcome {
    gpspm(|client, remote, peer| {
        let source = source(peer)?;
        for number in 1.. {
            source.store(0, &record(round, number))?;
            let to = place(remote, number)?;
            client
                .connection()
                .write(to, source.as_span(), Signal::OnError, number)?;
            client.persist(offset(number)..offset(number) + LEN as u64, WAIT)?;
            report(number)?;
        }
        Ok(())
    })
}

fn source(peer: &Peer) -> Result<LocalRegion, Failed> {
    Ok(LocalRegion::alloc(peer, LEN, Usage::WRITE_SRC)?)
}

/// The way, the round, and the number of the last record that was reported.
fn what_was_cut() -> Result<(String, u64, u64), Failed> {
    let text = std::env::var("RPMA_TEST_POWER_WAS_CUT")?;
    let mut parts = text.split(':');
    let mut next = || parts.next().ok_or("way:round:number");
    Ok((next()?.to_owned(), next()?.parse()?, next()?.parse()?))
}

fn after_the_cut() -> Outcome {
    let (way, round, reported) = what_was_cut()?;
    ensure!(
        reported >= LOOKED_AT,
        "only {reported} records were reported"
    );
    let (peer, _) = harness::listen()?;
    let region = target(&peer)?;
    let mut missing = Vec::new();
    for number in reported + 1 - LOOKED_AT..=reported {
        let mut found = vec![0; LEN];
        region.load(usize::try_from(offset(number))?, &mut found)?;
        if found != record(round, number) {
            missing.push(number);
        }
    }
    println!("{way}: {reported} records were reported, missing are {missing:?}");
    if way == "early" {
        ensure!(
            missing == [reported],
            "the last record was reported before it was flushed, and missing are {missing:?} of {reported}"
        );
    } else {
        ensure!(
            missing.is_empty(),
            "records {missing:?} of {reported} were reported as persistent and are not there"
        );
    }
    Ok(())
}
