//! The examples of `verbs` that do what a C program does, next to that program.

use std::path::Path;
use std::process::Command;

use harness::{Child, Need, Outcome, Test, device, ensure, ensure_eq};
use verbs::DeviceList;

use super::program::{LIMIT, local, test};

pub(crate) fn tests() -> Vec<Test> {
    let devinfo = Need::Tool("ibv_devinfo");
    vec![
        test(
            "devinfo_prints_line_for_line_what_ibv_devinfo_prints_of_each_device",
            &[Need::Device, devinfo],
            devinfo_prints_what_the_c_program_prints,
        ),
        test(
            "show_gids_lists_every_entry_of_the_kernels_table",
            &[Need::Device],
            show_gids_lists_the_kernels_table,
        ),
        test(
            "an_example_names_the_device_that_is_not_there",
            &[Need::Device],
            a_device_that_is_not_there_is_named,
        ),
    ]
}

fn devinfo_prints_what_the_c_program_prints() -> Outcome {
    let names: Vec<String> = DeviceList::new()?
        .iter()
        .map(|device| device.name().to_owned())
        .collect();
    ensure!(!names.is_empty(), "there is a device");
    for name in names {
        let run = |program: &Path, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).env("LC_ALL", "C");
            Child::start(&mut command)?.finish(LIMIT)?.success()
        };
        let theirs = run(Path::new("ibv_devinfo"), &["-v", "-d", &name])?.stdout;
        ensure!(theirs.lines().count() > 50, "ibv_devinfo -v says a lot");
        let ports = theirs
            .lines()
            .filter(|line| line.contains("\tport:"))
            .count();
        let program = local(env!("CARGO_BIN_EXE_devinfo-under-test"));
        let whole = ["-d", &name];
        let first = ["-d", &name, "-i", "1"];
        // Of a device with one port the choice of it changes nothing.
        let runs = if ports == 1 {
            &[&whole[..], &first][..]
        } else {
            &[&whole[..]]
        };
        for arguments in runs {
            let ours = run(&program, arguments)?.stdout;
            for (number, (our, their)) in ours.lines().zip(theirs.lines()).enumerate() {
                ensure_eq!(our, their, "{arguments:?}, line {}", number + 1);
            }
            let lines = [&ours, &theirs].map(|said| said.lines().count());
            ensure_eq!(lines[0], lines[1], "{arguments:?}: lines");
        }
    }
    Ok(())
}

fn show_gids_lists_the_kernels_table() -> Outcome {
    let mut command = Command::new(local(env!("CARGO_BIN_EXE_show-gids-under-test")));
    command.arg(&device().name);
    let said = Child::start(&mut command)?.finish(LIMIT)?.success()?.stdout;
    let folder = format!(
        "/sys/class/infiniband/{}/ports/{}",
        device().name,
        device().port
    );
    let mut expected = Vec::new();
    for entry in std::fs::read_dir(format!("{folder}/gids"))? {
        let index = entry?.file_name().into_string().unwrap_or_default();
        let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
        let gid = read(format!("{folder}/gids/{index}"));
        let version = match read(format!("{folder}/gid_attrs/types/{index}")).trim() {
            "RoCE v2" => "v2",
            "IB/RoCE v1" => "v1",
            _ => continue,
        };
        let interface = read(format!("{folder}/gid_attrs/ndevs/{index}"));
        expected.push((
            index,
            gid.trim().to_owned(),
            version,
            interface.trim().to_owned(),
        ));
    }
    ensure!(!expected.is_empty(), "the port has an address");
    for (index, gid, version, interface) in &expected {
        let line = said.lines().find(|line| {
            let fields: Vec<_> = line.split('\t').collect();
            fields.get(2) == Some(&&**index) && fields.get(3) == Some(&&**gid)
        });
        let Some(line) = line else {
            return Err(format!("no line with index {index} and GID {gid} in\n{said}").into());
        };
        let fields: Vec<_> = line.split('\t').collect();
        ensure_eq!(fields[0], device().name, "the device in {line:?}");
        ensure_eq!(
            &fields[5..],
            [*version, &**interface],
            "the end of {line:?}"
        );
        let ipv4 = fields[4].trim();
        let groups: std::net::Ipv6Addr = gid.parse()?;
        let mapped = groups.to_ipv4_mapped().map(|ip| ip.to_string());
        ensure_eq!(ipv4, mapped.unwrap_or_default(), "the address in {line:?}");
    }
    let last = said.lines().last().unwrap_or_default();
    ensure_eq!(
        last,
        format!("n_gids_found={}", expected.len()),
        "the last line"
    );
    Ok(())
}

fn a_device_that_is_not_there_is_named() -> Outcome {
    for (program, arguments) in [
        (
            env!("CARGO_BIN_EXE_devinfo-under-test"),
            &["-d", "nosuch0"][..],
        ),
        (env!("CARGO_BIN_EXE_show-gids-under-test"), &["nosuch0"]),
        (
            env!("CARGO_BIN_EXE_rc-pingpong-under-test"),
            &["-d", "nosuch0"],
        ),
    ] {
        let mut command = Command::new(local(program));
        let ended = Child::start(command.args(arguments))?.finish(LIMIT)?;
        ensure_eq!(ended.code(), 1, "{program}: the exit code");
        ensure!(
            ended.stderr.contains("nosuch0"),
            "{program} does not name the device: {}",
            ended.stderr
        );
    }
    Ok(())
}
