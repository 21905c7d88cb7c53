//! Regions of files, of huge pages and of foreign memory.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use harness::{
    Child, Failed, Need, Outcome, Pair, Role, Targets, Test, WAIT, completed, device, ensure,
    ensure_eq, pattern, phase, role_argument, rounds, test,
};
use rpma::cm::verbs;
use rpma::{
    Advice, AdviseFlags, Device, Error, ErrorKind, HugePageSize, LocalRegion, Peer, PersistMethod,
    RemoteRegion, Signal, Usage,
};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_file_is_read_and_written_by_a_peer",
            &[Need::Device],
            a_mapped_file,
        ),
        test(
            "a_file_open_for_reading_alone_is_a_source",
            &[Need::Device],
            a_read_only_file,
        ),
        test(
            "each_refused_registration_keeps_the_kernels_errno",
            &[Need::Device],
            refused,
        ),
        test(
            "what_was_persisted_is_in_the_file_after_a_kill",
            &[Need::Device],
            killed,
        ),
        test(
            "what_a_peer_writes_after_a_persist_is_persisted_by_the_next",
            &[Need::Device],
            persisted_again,
        ),
        test(
            "a_region_of_huge_pages_is_like_any_other",
            &[Need::Device, Need::Root],
            huge_pages,
        ),
        test(
            "foreign_memory_is_sent_and_received",
            &[Need::Device],
            foreign,
        ),
        test(
            "a_word_is_old_or_new_while_a_peer_writes_it",
            &[Need::Device],
            a_word,
        ),
        test(
            "native_flushes_are_granted_by_the_kind_of_memory",
            &[Need::Device, Need::Native],
            native_flushes,
        ),
        test(
            "what_a_device_does_not_offer_for_memory_is_unsupported",
            &[Need::Device],
            unsupported,
        ),
    ]
}

pub(crate) const ROLES: &[Role] = &[("persisting", persisting)];

const LEN: usize = 20_000;

fn peer() -> Result<Peer, Failed> {
    Ok(Peer::new(&Device::local(device().ip)?)?)
}

fn open(path: &Path) -> Result<File, Failed> {
    Ok(OpenOptions::new().read(true).write(true).open(path)?)
}

/// A file of the tmpfs that a memfd is on, with the pattern `seed`.
fn in_memory(seed: u64) -> Result<File, Failed> {
    let file = File::from(memfd_create("mapped", MemfdFlags::CLOEXEC)?);
    file.write_all_at(&pattern::bytes(seed, LEN), 0)?;
    Ok(file)
}

/// The path of a file where the tests were built, which is a disk (in the VM: the host's). It is
/// removed when this is dropped.
struct OnDisk(PathBuf);

impl OnDisk {
    fn new(name: &str) -> Result<Self, Failed> {
        let program = std::env::current_exe()?;
        let folder = program.parent().ok_or("the program has no folder")?;
        let path = folder.join(format!("{name}-{}", std::process::id()));
        std::fs::write(&path, vec![0; LEN])?;
        Ok(Self(path))
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn a_mapped_file() -> Outcome {
    let pair = Pair::new()?;
    let client = LocalRegion::alloc(&pair.client_peer, LEN, Usage::all())?;
    let file = in_memory(1)?;
    // Parts that begin and end inside of pages.
    for (from, to) in [(0, LEN), (5000, 13_001)] {
        let (bytes, from, to) = (to - from, from as u64, to as u64);
        let region = LocalRegion::map_file(&pair.server_peer, &file, from..to, Usage::all())?;
        let len = to - from;
        ensure_eq!(region.len() as u64, len, "length");
        ensure_eq!(
            region.persist_method(),
            Some(PersistMethod::Msync),
            "method"
        );
        let remote = RemoteRegion::from_descriptor(&region.descriptor())?;
        pair.client
            .read(client.span(..len)?, remote.as_span(), Signal::Always, 1)?;
        completed(pair.client.cq())?;
        let (mut found, mut expected) = (vec![0; bytes], vec![0; bytes]);
        client.load(0, &mut found)?;
        file.read_exact_at(&mut expected, from)?;
        ensure!(
            found == expected,
            "another content than the file's was read"
        );

        client.store(0, &pattern::bytes(from + 2, LEN))?;
        pair.client
            .write(remote.as_span(), client.span(..len)?, Signal::Always, 2)?;
        completed(pair.client.cq())?;
        region.persist(..)?;
        file.read_exact_at(&mut found, from)?;
        ensure!(
            found == pattern::bytes(from + 2, LEN)[..bytes],
            "what the peer wrote is not in the file"
        );
    }
    Ok(())
}

fn a_read_only_file() -> Outcome {
    let pair = Pair::new()?;
    let target = LocalRegion::alloc(&pair.server_peer, LEN, Usage::all())?;
    let to = RemoteRegion::from_descriptor(&target.descriptor())?;
    let disk = OnDisk::new("source")?;
    open(&disk.0)?.write_all_at(&pattern::bytes(3, LEN), 0)?;
    let file = File::open(&disk.0)?;
    let usage = Usage::WRITE_SRC | Usage::READ_SRC | Usage::SEND;
    let region = LocalRegion::map_file_read_only(&pair.client_peer, &file, 1.., usage)?;
    phase(format!("a private copy: {}", region.is_snapshot()));
    pair.client
        .write(to.span(1..)?, region.as_span(), Signal::Always, 1)?;
    completed(pair.client.cq())?;
    let mut found = vec![0; LEN - 1];
    target.load(1, &mut found)?;
    ensure!(found == pattern::bytes(3, LEN)[1..], "another content");
    found.fill(0);
    region.load(0, &mut found)?;
    ensure!(found == pattern::bytes(3, LEN)[1..], "another content here");
    let error = region.store(0, b"x").err().ok_or("stored")?;
    ensure!(matches!(error, Error::ReadOnly { .. }), "{error}");
    region.close()?;
    Ok(())
}

/// Memory mapped by the test, unmapped when dropped.
struct Mapped(*mut u8, usize);

impl Mapped {
    fn new(file: impl AsFd, len: usize, rights: ProtFlags) -> Result<Self, Failed> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0) }?;
        Ok(Self(start.cast(), len))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and used by nobody any more.
        let _ = unsafe { munmap(self.0.cast(), self.1) };
    }
}

fn refused() -> Outcome {
    let peer = peer()?;
    let file = in_memory(4)?;
    let errno = |error: Error| match &error {
        Error::Verbs(verbs) => verbs.errno(),
        _ => None,
    };
    for (what, len, rights, usage) in [
        ("read-only", LEN, ProtFlags::READ, Usage::WRITE_DST),
        ("no right at all", LEN, ProtFlags::empty(), Usage::WRITE_DST),
        (
            "no right for a source",
            LEN,
            ProtFlags::empty(),
            Usage::SEND,
        ),
        (
            "past the end of its file",
            LEN + 65_536,
            ProtFlags::READ.union(ProtFlags::WRITE),
            Usage::WRITE_DST,
        ),
    ] {
        let memory = Mapped::new(&file, len, rights)?;
        // SAFETY: mapped until the end of the round, and the registration is refused.
        let region = unsafe { LocalRegion::from_raw_parts(&peer, memory.0, len, usage) };
        let error = region.err().ok_or(format!("{what}: registered"))?;
        let text = error.to_string();
        ensure!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("must be mapped")),
            "{what}: {error}"
        );
        ensure_eq!(errno(error), Some(libc::EFAULT), "{what}: {text}");
    }
    // What this side can know is refused before.
    let error = LocalRegion::map_file(&peer, &file, ..LEN as u64 + 1, Usage::WRITE_DST);
    let error = error.err().ok_or("mapped past the end")?;
    ensure!(
        matches!(error, Error::OutOfBounds { what: "file", .. }),
        "{error}"
    );
    let disk = OnDisk::new("refused")?;
    let reader = File::open(&disk.0)?;
    let error = LocalRegion::map_file(&peer, &reader, .., Usage::WRITE_DST);
    let error = error.err().ok_or("mapped for writing")?;
    ensure_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    // Nothing of all this has used the device up.
    LocalRegion::map_file(&peer, &file, .., Usage::all())?.close()?;
    peer.close()?;
    Ok(())
}

/// Stores and persists a part, stores another, and waits to be killed.
fn persisting() -> Outcome {
    let peer = peer()?;
    let file = open(Path::new(&role_argument()))?;
    let region = LocalRegion::map_file(&peer, &file, .., Usage::READ_SRC)?;
    region.store(100, &pattern::bytes(7, 9000))?;
    region.persist(100..9100)?;
    println!(
        "persisted by {}",
        region.persist_method().ok_or("no method")?
    );
    std::thread::sleep(WAIT);
    Ok(())
}

fn killed() -> Outcome {
    let disk = OnDisk::new("killed")?;
    let path = disk.0.to_str().ok_or("a path that is no text")?;
    let child = Child::role("persisting", path, &[])?;
    child.wait_line("persisted by", WAIT)?;
    child.signal(libc::SIGKILL)?;
    child.finish(WAIT)?;
    let found = std::fs::read(&disk.0)?;
    let mut expected = vec![0; LEN];
    expected[100..9100].copy_from_slice(&pattern::bytes(7, 9000));
    ensure!(found == expected, "another content after the kill");
    Ok(())
}

fn persisted_again() -> Outcome {
    let pair = Pair::new()?;
    let client = LocalRegion::alloc(&pair.client_peer, LEN, Usage::all())?;
    let disk = OnDisk::new("again")?;
    let file = open(&disk.0)?;
    let region = match LocalRegion::map_file(&pair.server_peer, &file, .., Usage::WRITE_DST) {
        // Where the file system does not let pages be pinned for writing, nothing can be lost.
        Err(Error::Verbs(error)) if error.errno() == Some(libc::EFAULT) => {
            ensure!(
                error.hint().is_some_and(|hint| hint.contains("tmpfs")),
                "{error}"
            );
            return Ok(());
        }
        other => other?,
    };
    let remote = RemoteRegion::from_descriptor(&region.descriptor())?;
    for round in 0..4 {
        client.store(0, &pattern::bytes(round, LEN))?;
        pair.client
            .write(remote.as_span(), client.as_span(), Signal::Always, round)?;
        completed(pair.client.cq())?;
        region.persist(..)?;
        // As whoever does not share this machine's memory finds it.
        let found = std::fs::read(&disk.0)?;
        ensure!(
            found == pattern::bytes(round, LEN),
            "round {round}: another content in the file"
        );
    }
    Ok(())
}

/// Reserves huge pages, and gives them back when dropped.
struct Reserved(&'static str, String);

impl Reserved {
    fn new(path: &'static str, count: u32) -> Result<Self, Failed> {
        let before = std::fs::read_to_string(path)?;
        std::fs::write(path, count.to_string())?;
        Ok(Self(path, before))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0, self.1.trim());
    }
}

fn huge_pages() -> Outcome {
    let pages = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let free = || -> Result<u32, Failed> {
        let text = std::fs::read_to_string(pages.replace("nr_", "free_"))?;
        Ok(text.trim().parse()?)
    };
    let pair = Pair::new()?;
    let none = Reserved::new(pages, 0)?;
    let alloc =
        |len| LocalRegion::alloc_huge(&pair.server_peer, len, HugePageSize::MIB_2, Usage::all());
    let error = alloc(1).err().ok_or("huge pages of which there are none")?;
    ensure_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    ensure!(error.to_string().contains("0 are free"), "{error}");
    let hint = error.hint().unwrap_or_default();
    ensure!(hint.contains(pages), "{hint}");
    drop(none);

    let _reserved = Reserved::new(pages, 2)?;
    ensure_eq!(free()?, 2, "the machine has no room for two huge pages");
    // More than one page, and not a whole number of them.
    let len = (2 << 20) + 4097;
    let region = alloc(len)?;
    ensure_eq!(free()?, 0, "not in huge pages");
    let client = LocalRegion::alloc(&pair.client_peer, 4096, Usage::all())?;
    client.store(0, &pattern::bytes(8, 4096))?;
    let remote = RemoteRegion::from_descriptor(&region.descriptor())?;
    let end = len as u64 - 4096;
    pair.client
        .write(remote.span(end..)?, client.as_span(), Signal::Always, 1)?;
    completed(pair.client.cq())?;
    let mut found = vec![0; 4096];
    region.load(len - 4096, &mut found)?;
    pattern::check(&found, 8)?;
    region.close()?;
    ensure_eq!(free()?, 2, "huge pages are still mapped");
    Ok(())
}

fn foreign() -> Outcome {
    let pair = Pair::new()?;
    let memory = Mapped::new(in_memory(9)?, LEN, ProtFlags::READ | ProtFlags::WRITE)?;
    // SAFETY: mapped until the end of the test, after the connections, and never borrowed.
    let from =
        unsafe { LocalRegion::from_raw_parts(&pair.client_peer, memory.0, LEN, Usage::SEND) }?;
    let to = LocalRegion::alloc(&pair.server_peer, LEN, Usage::RECV)?;
    pair.server.recv(to.as_span(), 1)?;
    pair.client.send(from.as_span(), Signal::Always, 2)?;
    completed(pair.client.cq())?;
    completed(pair.server.cq())?;
    let mut found = vec![0; LEN];
    to.load(0, &mut found)?;
    pattern::check(&found, 9)?;
    from.close()?;
    drop(pair);
    drop(memory);
    Ok(())
}

fn a_word() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 4096)?;
    let word = |round: u64| u64::from_ne_bytes([(round % 251) as u8; 8]);
    let to = targets.of_server.span(8..16)?;
    let server = &targets.server;
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let reader = scope.spawn(|| -> Result<usize, Failed> {
            let mut seen = 0;
            let mut last = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let value = server.load_u64(8)?;
                let bytes = value.to_ne_bytes();
                ensure_eq!(bytes, [bytes[0]; 8], "half of a word");
                seen += usize::from(value != last);
                last = value;
            }
            Ok(seen)
        });
        let written = || -> Outcome {
            for round in 1..=rounds(500, 100_000) as u64 {
                if round % 2 == 0 {
                    targets.client.store_u64(16, word(round))?;
                    let from = targets.client.span(16..24)?;
                    pair.client.write(to, from, Signal::Always, round)?;
                } else {
                    let value = word(round).to_ne_bytes();
                    pair.client.atomic_write(to, value, Signal::Always, round)?;
                }
                completed(pair.client.cq())?;
                ensure_eq!(server.load_u64(8)?, word(round), "round {round}");
            }
            Ok(())
        };
        let outcome = written();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen = reader.join().map_err(|_| "the reader has panicked")??;
        ensure!(seen > 1, "the reader saw nothing change");
        outcome
    })
}

/// Ordinary memory takes no flush to persistence, and is registered all the same.
fn native_flushes() -> Outcome {
    let peer = peer()?;
    for (usage, types) in [
        (Usage::all(), Usage::FLUSH_VISIBILITY),
        (Usage::FLUSH, Usage::FLUSH_VISIBILITY),
        (Usage::FLUSH_PERSISTENT, Usage::empty()),
        (Usage::WRITE_DST, Usage::empty()),
    ] {
        let region = LocalRegion::alloc(&peer, LEN, usage)?;
        ensure_eq!(region.native_flush_types(), types, "{usage:?}");
        ensure_eq!(region.usage(), usage, "what the other side is told");
        let atomics = usage.contains(Usage::READ_SRC | Usage::WRITE_DST);
        ensure_eq!(region.allows_atomics(), atomics, "{usage:?}");
    }
    Ok(())
}

fn unsupported() -> Outcome {
    let peer = peer()?;
    let region = LocalRegion::alloc(&peer, LEN, Usage::all())?;
    let extended = peer.device().context().query_extended()?;
    let paging = extended.on_demand_paging();
    // SoftRoCE says so and misplaces bytes.
    let capable = extended.plain().vendor_id() != 0x00ff_ffff
        && paging.general.contains(verbs::OdpFlags::SUPPORT)
        && paging
            .rc
            .contains(verbs::OdpTransportFlags::WRITE | verbs::OdpTransportFlags::READ);
    ensure_eq!(peer.device().is_odp_capable()?, capable, "paging on demand");
    ensure!(!region.is_on_demand(), "memory that can be pinned is not");
    let error = region
        .advise(.., Advice::PREFETCH_WRITE, AdviseFlags::FLUSH)
        .err()
        .ok_or("advice was taken for pinned memory")?;
    ensure!(
        matches!(
            error.kind(),
            ErrorKind::Unsupported | ErrorKind::InvalidArgument
        ),
        "{error}"
    );
    let file = in_memory(5)?;
    // SAFETY: refused: it is no DMA buffer.
    let refused =
        unsafe { LocalRegion::from_dmabuf(&peer, file.as_fd(), 0, 4096, Usage::READ_SRC) };
    let error = refused.err().ok_or("an ordinary file as a DMA buffer")?;
    ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    Ok(())
}
