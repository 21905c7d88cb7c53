//! `mckey`: members of a group that send or receive. Each run of it sleeps for three seconds.

use std::net::IpAddr;

use harness::{Child, Failed, Outcome, Test, WAIT, device, ensure_eq, test};
use rpma::cm::{Group, IdOptions, JoinKind, Multicast};

use super::{FILL, address, ended, ensure_not_said, message, needs, start};
use crate::cm::datagrams::{End, soon};

pub(crate) fn tests() -> Vec<Test> {
    vec![test(
        "mckey_hears_us_with_the_groups_key_only_and_is_heard",
        &needs("mckey"),
        groups,
    )]
}

const DATAGRAMS: usize = 4;
const LEN: usize = 100;
/// The key of the port space UDP, also that of groups.
const KEY: u32 = 0x0123_4567;

fn group(number: u16) -> IpAddr {
    match device().ip {
        IpAddr::V4(_) => IpAddr::from([239, 77, 2, number.to_le_bytes()[0]]),
        IpAddr::V6(_) => IpAddr::from([0xff0e, 0, 0, 0, 0, 0, 77, 0x200 + number]),
    }
}

fn program(group: IpAddr, more: &[&str]) -> Result<Child, Failed> {
    let (ip, group) = (address(), group.to_string());
    let (datagrams, len) = (DATAGRAMS.to_string(), LEN.to_string());
    let how = ["-m", &group, "-b", &ip, "-C", &datagrams, "-S", &len];
    start("mckey", &[&how, more].concat())
}

struct Member {
    // Left before the queue pair goes.
    group: Group,
    end: End,
}

fn join(group: IpAddr, kind: JoinKind) -> Result<Member, Failed> {
    let multicast = Multicast::bind(device().addr(0), &IdOptions::default())?;
    let end = End::new(multicast.context())?;
    multicast.init_qp(&end.qp)?;
    let group = multicast.join(group, &end.qp, kind)?;
    Ok(Member { group, end })
}

impl Member {
    /// Sends all datagrams to the group.
    fn send(&self, key: u32) -> Outcome {
        let to = self.group.wait_joined(soon())?;
        let handle = rpma::cm::verbs::AddressHandle::new(&self.end.pd, &to.address)?;
        for number in 0..DATAGRAMS {
            let data = message(0, number, LEN);
            self.end
                .send_with_number(&handle, to.qp_number, key, &data)?;
        }
        Ok(())
    }

    /// Receives all datagrams from a program.
    fn hear(&self) -> Outcome {
        for _ in 0..DATAGRAMS {
            let (completion, number) = self.end.expect_from(&[FILL; LEN])?;
            let imm = completion.result()?.imm();
            ensure_eq!(imm, Some(number), "the immediate data");
        }
        Ok(())
    }
}

fn groups() -> Outcome {
    // All at the same time, each in a group of its own.
    let listening = program(group(1), &[])?;
    let listening_to_sender = program(group(2), &[])?;
    let mut talking = Vec::new();
    for (number, more) in [(3, &["-s"][..]), (4, &["-s", "-o"])] {
        let member = join(group(number), JoinKind::FullMember)?;
        for _ in 0..DATAGRAMS {
            member.end.recv()?;
        }
        let key = member.group.wait_joined(soon())?.qkey;
        ensure_eq!(key, KEY, "the key of a group");
        talking.push((program(group(number), more)?, member));
    }
    for (program, member) in &talking {
        program.wait_line("mckey: joined dgid", WAIT)?;
        member.hear()?;
    }
    let done = [
        "data transfers complete",
        "test complete",
        "return status 0",
    ];
    for (program, _) in talking {
        ended(&program.finish(WAIT)?, 0, &done)?;
    }
    for (program, number, kind) in [
        (listening, 1, JoinKind::FullMember),
        (listening_to_sender, 2, JoinKind::SendOnly),
    ] {
        let member = join(group(number), kind)?;
        program.wait_line("receiving data transfers", WAIT)?;
        member.send(!KEY)?;
        ensure_not_said(&program, "data transfers complete")?;
        member.send(KEY)?;
        ended(&program.finish(WAIT)?, 0, &done)?;
    }
    Ok(())
}
