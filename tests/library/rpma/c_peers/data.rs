//! One-sided operations with peers of librpma: by us on their memory, and by them on ours.

use std::process::Command;

use harness::{
    Failed, NATIVE_LIBRPMA, Need, Outcome, Test, c_program, completed, ensure, ensure_eq, pattern,
    phase, test,
};
use rpma::{
    Connection, ConnectionConfig, FlushMethod, FlushType, LocalRegion, Opcode, Peer, PeerConfig,
    RemoteRegion, Signal, Usage,
};

use super::{Bytes, Side, THEIRS, disconnect, noticed, peer, runs, wait_closed};

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device, Need::Librpma];
    let newer = &[Need::Device, Need::Native, Need::NativeLibrpma];
    vec![
        test("we_read_the_memory_of_a_librpma_peer", needs, || {
            we_operate(Op::Read, FlushType::Visibility)
        }),
        test("a_librpma_peer_reads_our_memory", needs, || {
            they_operate(Op::Read, FlushType::Visibility)
        }),
        test(
            "what_we_write_flush_and_write_atomically_a_librpma_peer_has",
            needs,
            || we_operate(Op::Atomic, FlushType::Visibility),
        ),
        test(
            "what_a_librpma_peer_writes_flushes_and_writes_atomically_we_have",
            needs,
            || they_operate(Op::Atomic, FlushType::Visibility),
        ),
        test(
            "we_flush_to_persistence_once_the_configuration_of_a_librpma_peer_is_applied",
            needs,
            || we_operate(Op::Write, FlushType::Persistent),
        ),
        test(
            "a_librpma_peer_flushes_to_persistence_once_our_configuration_is_applied",
            needs,
            || they_operate(Op::Write, FlushType::Persistent),
        ),
        test(
            "we_write_with_an_immediate_for_a_librpma_peer",
            needs,
            || we_operate(Op::Immediate, FlushType::Visibility),
        ),
        test(
            "a_librpma_peer_writes_with_an_immediate_for_us",
            needs,
            || they_operate(Op::Immediate, FlushType::Visibility),
        ),
        test(
            "on_a_device_that_flushes_librpma_peers_that_cannot_are_understood_both_ways",
            newer,
            || {
                we_operate(Op::Write, FlushType::Visibility)?;
                they_operate(Op::Write, FlushType::Visibility)
            },
        )
        .long(),
        test(
            "a_librpma_peer_that_lets_the_device_flush_finds_our_memory_ready_for_it",
            newer,
            || they_operate_with(Op::Write, FlushType::Visibility, Library::Native),
        )
        .long(),
        test(
            "a_librpma_peer_that_lets_the_device_flush_is_flushed_to_in_either_way",
            newer,
            || {
                [FlushMethod::Native, FlushMethod::Read]
                    .into_iter()
                    .try_for_each(|method| {
                        we_operate_on(Op::Write, FlushType::Visibility, Library::Native, method)
                    })
            },
        )
        .long(),
    ]
}

// The memory of either side, as the C program lays it out.
const PIECE: usize = 1024;
const ROOM: usize = PIECE;
const WORD: usize = 2 * PIECE;
const SIZE: usize = 4096;
const UNTOUCHED: u8 = 0xee;

/// Which librpma the C program runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Library {
    /// The one it was built with, which flushes by reading on all devices.
    Installed,
    /// A newer one, which lets the device flush where that can.
    Native,
}

impl Library {
    fn program(self) -> Command {
        let mut command = Command::new(c_program("rpma/data"));
        if self == Self::Native {
            command.env("LD_LIBRARY_PATH", NATIVE_LIBRPMA);
        }
        command
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Read,
    Write,
    Atomic,
    Immediate,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Atomic => "atomic",
            Self::Immediate => "imm",
        }
    }
}

fn arguments(op: Op, flush: FlushType, does: &str) -> Vec<String> {
    let flush = match flush {
        FlushType::Persistent => "persistent",
        FlushType::Visibility => "visibility",
    };
    // Who operates ends the connection.
    let ends = if does == "operate" { "self" } else { "peer" };
    vec![
        format!("op={}", op.name()),
        format!("flush={flush}"),
        format!("does={does}"),
        format!("ends={ends}"),
    ]
}

fn own_memory(peer: &Peer, bytes: Bytes, flush: FlushType) -> Result<LocalRegion, Failed> {
    let mut usage = Usage::READ_SRC
        | Usage::WRITE_SRC
        | Usage::WRITE_DST
        | Usage::FLUSH_VISIBILITY
        | Usage::RECV;
    if flush == FlushType::Persistent {
        usage |= Usage::FLUSH_PERSISTENT;
    }
    let memory = LocalRegion::alloc(peer, SIZE, usage)?;
    memory.store(0, &[UNTOUCHED; SIZE])?;
    memory.store(0, &pattern::bytes(bytes.ours(), PIECE))?;
    Ok(memory)
}

/// The 28 bytes that the examples of librpma exchange: sizes, the region's descriptor, the
/// configuration's.
fn describe(memory: &LocalRegion, flush: FlushType) -> [u8; 28] {
    let mut config = PeerConfig::default();
    config.set_direct_write_to_pmem(flush == FlushType::Persistent);
    let mut out = [0; 28];
    out[2] = 21;
    out[3] = 1;
    out[4..25].copy_from_slice(&memory.descriptor());
    out[25] = config.descriptor()[0];
    out
}

fn their_memory(data: &[u8]) -> Result<(RemoteRegion, PeerConfig), Failed> {
    ensure_eq!(data[..4], [0, 0, 21, 1], "sizes of the descriptors");
    let region = RemoteRegion::from_descriptor(&data[4..25])?;
    ensure_eq!(region.len(), SIZE as u64, "size of the region");
    Ok((region, PeerConfig::from_descriptor(&data[25..26])?))
}

/// The number that goes with what the side with this sequence writes.
fn immediate(seed: u64) -> u32 {
    u32::try_from(seed).map_or(0, |seed| seed.wrapping_mul(0x0102_0304).wrapping_add(5))
}

fn we_operate(op: Op, flush: FlushType) -> Outcome {
    we_operate_on(op, flush, Library::Installed, FlushMethod::Read)
}

fn we_operate_on(op: Op, flush: FlushType, library: Library, method: FlushMethod) -> Outcome {
    // Reading is checked by us, everything else by the C program.
    let wrong = match op {
        Op::Read => Bytes::TheirsWrong,
        _ => Bytes::OursWrong,
    };
    for (role, bytes) in runs(wrong) {
        let peer = peer()?;
        let arguments = arguments(op, flush, "watch");
        let side = Side::start_as(library.program(), &peer, role, bytes, &arguments)?;
        let own = own_memory(&peer, bytes, flush)?;
        let data = describe(&own, flush);
        let mut settings = ConnectionConfig::default();
        settings.set_native_operations(method == FlushMethod::Native);
        let connection = side.connect(&settings, &data, |_| Ok(()))?;
        ensure_eq!(
            connection.flush_method(flush),
            method,
            "how flushes are done"
        );
        let (theirs, config) = their_memory(connection.private_data())?;
        phase(op.name());
        match op {
            Op::Read => noticed(bytes, read(&connection, &theirs)?, "memory read")?,
            Op::Immediate => write_with_imm(&connection, &own, &theirs, bytes)?,
            Op::Write | Op::Atomic => write(&connection, &own, &theirs, flush, &config)?,
        }
        if op == Op::Atomic {
            write_word(&connection, &own, &theirs, bytes)?;
        }
        disconnect(&connection)?;
        side.finish(bytes)?;
    }
    Ok(())
}

fn expect_completion(connection: &Connection, number: u64, opcode: Opcode) -> Outcome {
    let completion = completed(connection.cq())?;
    ensure_eq!(completion.op_context(), number, "operation completed");
    let done = completion.result().map_err(|error| error.to_string())?;
    ensure_eq!(done.opcode(), opcode, "opcode of the operation {number}");
    Ok(())
}

/// What is found in the other side's memory, compared with its sequence.
fn read(connection: &Connection, theirs: &RemoteRegion) -> Result<Result<(), String>, Failed> {
    let copy = LocalRegion::alloc(connection.peer(), PIECE, Usage::READ_DST)?;
    let source = theirs.span(..PIECE as u64)?;
    connection.read(copy.as_span(), source, Signal::Always, 7)?;
    expect_completion(connection, 7, Opcode::RDMA_READ)?;
    let mut found = vec![0; PIECE];
    copy.load(0, &mut found)?;
    Ok(pattern::check(&found, THEIRS))
}

fn write(
    connection: &Connection,
    own: &LocalRegion,
    theirs: &RemoteRegion,
    flush: FlushType,
    config: &PeerConfig,
) -> Outcome {
    let target = theirs.span(ROOM as u64..(ROOM + PIECE) as u64)?;
    if flush == FlushType::Persistent {
        let refused = connection.flush(target, flush, Signal::Always, 6);
        ensure!(
            refused.is_err(),
            "a flush to persistence is taken before the configuration is applied"
        );
        connection.apply_remote_peer_config(config);
    }
    connection.write(target, own.span(..PIECE as u64)?, Signal::OnError, 8)?;
    connection.flush(target, flush, Signal::Always, 9)?;
    let opcode = match connection.flush_method(flush) {
        FlushMethod::Native => Opcode::FLUSH,
        _ => Opcode::RDMA_READ,
    };
    expect_completion(connection, 9, opcode)
}

fn write_with_imm(
    connection: &Connection,
    own: &LocalRegion,
    theirs: &RemoteRegion,
    bytes: Bytes,
) -> Outcome {
    let target = theirs.span(ROOM as u64..(ROOM + PIECE) as u64)?;
    let (source, imm) = (own.span(..PIECE as u64)?, immediate(bytes.ours()));
    connection.write_with_imm(target, source, imm, Signal::Always, 8)?;
    expect_completion(connection, 8, Opcode::RDMA_WRITE)
}

/// First another word, from a region, then the right one, of the caller.
fn write_word(
    connection: &Connection,
    own: &LocalRegion,
    theirs: &RemoteRegion,
    bytes: Bytes,
) -> Outcome {
    let word = theirs.span(WORD as u64..(WORD + 8) as u64)?;
    connection.atomic_write_from(word, own.span(..8)?, Signal::Always, 10)?;
    expect_completion(connection, 10, Opcode::RDMA_WRITE)?;
    let copy = LocalRegion::alloc(connection.peer(), 8, Usage::READ_DST)?;
    connection.read(copy.as_span(), word, Signal::Always, 11)?;
    expect_completion(connection, 11, Opcode::RDMA_READ)?;
    let mut found = [0; 8];
    copy.load(0, &mut found)?;
    pattern::check(&found, bytes.ours())?;
    let mut value = [0; 8];
    value.copy_from_slice(&pattern::bytes(bytes.ours() + 1, 8));
    connection.atomic_write(word, value, Signal::Always, 12)?;
    expect_completion(connection, 12, Opcode::RDMA_WRITE)
}

fn they_operate(op: Op, flush: FlushType) -> Outcome {
    they_operate_with(op, flush, Library::Installed)
}

fn they_operate_with(op: Op, flush: FlushType, library: Library) -> Outcome {
    // What the C program reads it checks itself.
    let wrong = match op {
        Op::Read => Bytes::OursWrong,
        _ => Bytes::TheirsWrong,
    };
    for (role, bytes) in runs(wrong) {
        let peer = peer()?;
        let mut arguments = arguments(op, flush, "operate");
        if library == Library::Native {
            arguments.push("flushes=native".to_owned());
        }
        let side = Side::start_as(library.program(), &peer, role, bytes, &arguments)?;
        let own = own_memory(&peer, bytes, flush)?;
        let data = describe(&own, flush);
        let connection = side.connect(&ConnectionConfig::default(), &data, |request| {
            // A write with immediate takes a receive, whose memory it leaves alone.
            if op == Op::Immediate {
                request.recv(own.span(SIZE as u64 - 1..)?, 1)?;
            }
            Ok(())
        })?;
        phase(op.name());
        let mut found = Ok(());
        if op == Op::Immediate {
            found = check_immediate(&connection)?;
        }
        if bytes != Bytes::OursWrong {
            wait_closed(&connection)?;
            found = found.and_then(|()| check_memory(&own, op));
        }
        noticed(bytes, found, "our memory")?;
        side.finish(bytes)?;
    }
    Ok(())
}

fn check_immediate(connection: &Connection) -> Result<Result<(), String>, Failed> {
    let completion = completed(connection.cq())?;
    let done = completion.result().map_err(|error| error.to_string())?;
    ensure_eq!(done.opcode(), Opcode::RECV_RDMA_WITH_IMM, "opcode");
    ensure_eq!(done.byte_len() as usize, PIECE, "bytes written");
    let (found, expected) = (done.imm(), Some(immediate(THEIRS)));
    Ok(match found == expected {
        true => Ok(()),
        false => Err(format!("immediate {found:?}, not {expected:?}")),
    })
}

/// This side's memory once the C program has ended the connection.
fn check_memory(own: &LocalRegion, op: Op) -> Result<(), String> {
    let mut memory = vec![0; SIZE];
    own.load(0, &mut memory)
        .map_err(|error| error.to_string())?;
    let untouched =
        |range: std::ops::Range<usize>| match memory[range].iter().all(|byte| *byte == UNTOUCHED) {
            true => Ok(()),
            false => Err("bytes that nobody may touch have changed".to_owned()),
        };
    pattern::check(&memory[..PIECE], super::OURS)?;
    match op {
        Op::Read => untouched(ROOM..WORD)?,
        _ => pattern::check(&memory[ROOM..ROOM + PIECE], THEIRS)?,
    }
    match op {
        Op::Atomic => pattern::check(&memory[WORD..WORD + 8], THEIRS + 1)?,
        _ => untouched(WORD..WORD + 8)?,
    }
    untouched(WORD + 8..SIZE)
}
