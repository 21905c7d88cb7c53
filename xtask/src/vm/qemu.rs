//! QEMU's command line.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use super::kernel::Kernel;
use super::{Config, guest, pmem};
use crate::error::{Error, Result};

/// The agent's port in the guest.
const AGENT_PORT: u16 = 7000;

/// The kernel's limit for its command line on x86, with the closing NUL.
const COMMAND_LINE_LIMIT: usize = 2048;

/// The rate of a time stamp counter that counts instructions, where one takes a nanosecond.
const ICOUNT_TSC_KHZ: u64 = 1_000_000;

/// What one boot is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Boot<'a> {
    /// KVM rather than TCG.
    pub(crate) kvm: bool,
    /// The kernel.
    pub(crate) kernel: &'a Kernel,
    /// Its initrd.
    pub(crate) initrd: &'a Path,
    /// A tree whose files hide those of the host's root.
    pub(crate) layer: Option<&'a Path>,
    /// The program that becomes process 1 of the guest.
    pub(crate) agent: &'a Path,
    /// The host's port that leads to the agent.
    pub(crate) port: u16,
    /// Only see whether a kernel starts; no shares, no network.
    pub(crate) probe: bool,
    /// The rate of this machine's time stamp counter.
    pub(crate) tsc_khz: u64,
    /// Whether another VM is at the link already.
    pub(crate) link_is_there: bool,
}

/// The arguments of `qemu-system-x86_64`.
///
/// # Errors
/// When the kernel's command line would be longer than the kernel takes.
pub(crate) fn arguments(config: &Config, boot: &Boot<'_>) -> Result<Vec<OsString>> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    let (accelerator, cpu) = match (boot.kvm, config.icount) {
        (true, _) => ("kvm", "host"),
        (false, false) => ("tcg,thread=multi", "max"),
        (false, true) => ("tcg,thread=single", "max"),
    };
    add(&[
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
    ]);
    add(&["-M", &config.machine, "-accel", accelerator, "-cpu", cpu]);
    let memory = match config.pmem {
        Some(_) => format!("{},slots=2,maxmem=64G", config.memory),
        None => config.memory.clone(),
    };
    add(&["-smp", &config.processors.to_string(), "-m", &memory]);
    if config.icount {
        add(&["-icount", "shift=0,sleep=off"]);
    }
    add(&["-kernel", &boot.kernel.image.to_string_lossy()]);
    add(&["-initrd", &boot.initrd.to_string_lossy()]);
    add(&["-append", &kernel_line(config, boot)?]);
    if !boot.probe {
        // microvm has no PCI: the same devices, on another bus.
        let bus = if config.machine.starts_with("microvm") {
            "device"
        } else {
            "pci"
        };
        let share = |id: &str, path: &Path, how: &str| {
            [
                format!(
                    "local,id={id},path={},security_model=none,multidevs=remap{how}",
                    option_value(path)
                ),
                format!("virtio-9p-{bus},fsdev={id},mount_tag={id}"),
            ]
        };
        let [root, device] = share("root", Path::new("/"), ",readonly=on");
        add(&["-fsdev", &root, "-device", &device]);
        if let Some(layer) = boot.layer {
            let [fs, device] = share("layer", layer, ",readonly=on");
            add(&["-fsdev", &fs, "-device", &device]);
        }
        for (index, path) in config.shares.iter().enumerate() {
            let [fs, device] = share(&format!("share{index}"), path, "");
            add(&["-fsdev", &fs, "-device", &device]);
        }
        let forward = format!(
            "user,id=agent,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:{}-{}:{AGENT_PORT}",
            boot.port,
            guest::AGENT_ADDRESS
        );
        let device = format!("virtio-net-{bus},netdev=agent,mac={}", guest::AGENT_MAC);
        add(&["-netdev", &forward, "-device", &device]);
        if let Some(link) = &config.link {
            let (listens, number) = if boot.link_is_there {
                ("off", 2)
            } else {
                ("on", 1)
            };
            let cable = format!(
                "stream,id=link,server={listens},addr.type=unix,addr.path={}",
                option_value(link)
            );
            let mac = guest::link_mac(number);
            let device = format!("virtio-net-{bus},netdev=link,mac={mac}");
            add(&["-netdev", &cable, "-device", &device]);
        }
        if let Some(file) = &config.pmem {
            let backend = format!(
                "memory-backend-file,id=pmem,share=on,size={},mem-path={}",
                pmem::FILE_SIZE,
                option_value(file)
            );
            let device = format!("nvdimm,memdev=pmem,label-size={}", pmem::LABEL_SIZE);
            add(&["-object", &backend, "-device", &device]);
        }
        config.qemu_args.iter().for_each(|word| add(&[word]));
    }
    Ok(arguments)
}

fn kernel_line(config: &Config, boot: &Boot<'_>) -> Result<String> {
    let mut line = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t mitigations=off no_timer_check tsc=reliable \
                    cryptomgr.notests random.trust_cpu=on"
        .to_owned();
    let mut word = |text: &str| {
        line.push(' ');
        line.push_str(text);
    };
    if !boot.kvm {
        // Without it an emulated machine on a busy host may hang while it measures its own clock.
        let khz = if config.icount {
            ICOUNT_TSC_KHZ
        } else {
            boot.tsc_khz
        };
        word(&format!("tsc_early_khz={khz}"));
    }
    if boot.probe {
        word("vm.probe=1");
    } else {
        word(&format!("vm.agent={}", guest::as_argument(boot.agent)));
        word(&format!("vm.port={AGENT_PORT}"));
        word(&format!("vm.folder={}", guest::as_argument(&config.folder)));
        word(&format!("vm.idle={}", config.idle_minutes));
        if boot.layer.is_some() {
            word("vm.layer=1");
        }
        if config.link.is_some() {
            word(&format!(
                "vm.link={}",
                if boot.link_is_there { 2 } else { 1 }
            ));
        }
        for (index, share) in config.shares.iter().enumerate() {
            word(&format!("vm.share{index}={}", guest::as_argument(share)));
        }
    }
    word(&config.kernel_args);
    if line.len() < COMMAND_LINE_LIMIT {
        return Ok(line);
    }
    Err(Error::new(format!(
        "the VM's kernel command line has {} characters and may have {}; use shorter paths or fewer shares",
        line.len(),
        COMMAND_LINE_LIMIT - 1
    )))
}

/// A path inside one of QEMU's option strings, where a comma is doubled.
fn option_value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// How fast this machine's time stamp counter counts, in kHz.
#[cfg(target_arch = "x86_64")]
pub(crate) fn tsc_khz() -> u64 {
    let read = || {
        // SAFETY: RDTSC exists on every x86-64 processor and touches no memory; that a kernel forbids it to user space
        // (PR_TSC_SIGSEGV) would be asked for by this process itself, which does not.
        unsafe { core::arch::x86_64::_rdtsc() }
    };
    let (started, first) = (Instant::now(), read());
    std::thread::sleep(Duration::from_millis(50));
    let (elapsed, second) = (started.elapsed(), read());
    let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).max(1);
    second.wrapping_sub(first).saturating_mul(1_000_000) / nanoseconds
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::config::Accelerator;
    use super::super::system::System;
    use super::*;

    fn config() -> Config {
        Config {
            name: "default".to_owned(),
            cache: "/c".into(),
            folder: "/c/vm/default".into(),
            shares: vec!["/work, tree".into(), "/target".into()],
            first_port: 20_001,
            accelerator: Accelerator::Auto,
            memory: "2G".to_owned(),
            processors: 2,
            machine: "microvm,acpi=on".to_owned(),
            system: System::Host,
            kernel_package: None,
            kernel_args: String::new(),
            qemu_args: vec!["-s".to_owned()],
            idle_minutes: 5,
            icount: false,
            link: None,
            pmem: None,
        }
    }

    fn words(config: &Config, change: impl FnOnce(&mut Boot<'_>)) -> Vec<String> {
        let kernel = Kernel {
            release: "6.1".to_owned(),
            image: PathBuf::from("/c/vmlinux"),
            modules: PathBuf::from("/c/modules"),
        };
        let mut boot = Boot {
            kvm: false,
            kernel: &kernel,
            initrd: Path::new("/c/initrd"),
            layer: None,
            agent: Path::new("/c/agent"),
            port: 20_001,
            probe: false,
            tsc_khz: 2_500_000,
            link_is_there: false,
        };
        change(&mut boot);
        let words = arguments(config, &boot).unwrap();
        words
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    #[test]
    fn the_root_is_read_only_and_the_shares_are_not() {
        let words = words(&config(), |_| {});
        let root = words.iter().find(|word| word.contains("id=root,")).unwrap();
        assert!(
            root.contains("path=/,") && root.contains("readonly=on"),
            "{root}"
        );
        let share = words
            .iter()
            .find(|word| word.contains("id=share0,"))
            .unwrap();
        assert!(
            share.contains("path=/work,, tree,") && !share.contains("readonly"),
            "{share}"
        );
        let line = words
            .iter()
            .find(|word| word.starts_with("console="))
            .unwrap();
        assert!(
            line.contains("vm.share0=/work,%20tree vm.share1=/target"),
            "{line}"
        );
    }

    #[test]
    fn a_layer_is_read_only_and_told_to_the_guest() {
        let tree = Path::new("/c/libraries/tree");
        let with = words(&config(), |boot| boot.layer = Some(tree)).join(" ");
        assert!(
            with.contains("local,id=layer,path=/c/libraries/tree,")
                && with
                    .contains("readonly=on -device virtio-9p-device,fsdev=layer,mount_tag=layer")
                && with.contains(" vm.layer=1"),
            "{with}"
        );
        let without = words(&config(), |_| {}).join(" ");
        assert!(!without.contains("layer"), "{without}");
    }

    #[test]
    fn the_guest_reaches_nothing_and_only_loopback_reaches_it() {
        let words = words(&config(), |_| {});
        let net = words.iter().find(|word| word.starts_with("user,")).unwrap();
        assert!(
            net.contains("restrict=on") && net.contains("hostfwd=tcp:127.0.0.1:20001-"),
            "{net}"
        );
    }

    #[test]
    fn an_emulated_machine_is_told_its_clock_rate_and_a_real_one_is_not() {
        let line = |kvm: bool| words(&config(), |boot| boot.kvm = kvm).join(" ");
        assert!(line(false).contains("tsc_early_khz=2500000") && line(false).contains("-cpu max"));
        assert!(
            !line(true).contains("tsc_early_khz") && line(true).contains("-accel kvm -cpu host")
        );
    }

    #[test]
    fn a_clock_that_counts_instructions_belongs_to_one_emulated_processor() {
        let counting = config().counting_instructions();
        let words = words(&counting, |_| {}).join(" ");
        for part in [
            "-accel tcg,thread=single",
            "-smp 1 ",
            "-icount shift=0,sleep=off",
            " tsc_early_khz=1000000 ",
            " vm.idle=0",
        ] {
            assert!(words.contains(part), "{part} in {words}");
        }
        assert_eq!(counting.accelerator, Accelerator::Tcg, "KVM counts nothing");
    }

    #[test]
    fn a_probe_shares_nothing() {
        let words = words(&config(), |boot| boot.probe = true);
        let probe = words.join(" ");
        assert!(probe.contains("vm.probe=1"));
        assert!(!words.contains(&"-s".to_owned()), "the user's own words");
        assert!(!probe.contains("-fsdev") && !probe.contains("-netdev"));
    }

    #[test]
    fn other_machines_have_their_devices_on_pci() {
        let mut q35 = config();
        q35.machine = "q35".to_owned();
        let words = words(&q35, |_| {}).join(" ");
        assert!(words.contains("virtio-9p-pci") && words.contains("virtio-net-pci"));
        assert!(words.ends_with(" -s"), "the user's own words come last");
    }

    #[test]
    fn persistent_memory_is_a_file_that_others_see_and_room_for_it_is_left() {
        let words = words(&config().with_pmem(Path::new("/c/a,b")), |_| {}).join(" ");
        for part in [
            "-M q35,nvdimm=on ",
            " -m 2G,slots=2,maxmem=64G ",
            "share=on,size=69206016,mem-path=/c/a,,b ",
            " -device nvdimm,memdev=pmem,label-size=2097152 ",
            "virtio-net-pci",
        ] {
            assert!(words.contains(part), "{part} in {words}");
        }
    }

    #[test]
    fn a_kernel_line_that_would_be_cut_is_refused() {
        let mut long = config();
        long.kernel_args = "x".repeat(2000);
        let kernel = Kernel {
            release: String::new(),
            image: PathBuf::new(),
            modules: PathBuf::new(),
        };
        let boot = Boot {
            kvm: false,
            kernel: &kernel,
            initrd: Path::new(""),
            layer: None,
            agent: Path::new(""),
            port: 1,
            probe: false,
            tsc_khz: 1,
            link_is_there: false,
        };
        let error = arguments(&long, &boot).unwrap_err().to_string();
        assert!(error.contains("may have 2047"), "{error}");
    }
}
