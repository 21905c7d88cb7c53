//! Calls of the C libraries made to fail one after the other, by a preloaded library that also
//! counts events got and acknowledged. A file for each layer.

mod cm;
mod rpma;
mod stage;
mod verbs;

use std::ffi::{CStr, CString};
use std::time::Duration;

use ::rpma::cm::EventKind;
use harness::{Child, Failed, Outcome, Role, Test, c_library, ensure, ensure_eq, full};

pub(crate) fn tests() -> Vec<Test> {
    [verbs::tests(), cm::tests(), rpma::tests()]
        .into_iter()
        .flatten()
        .collect()
}

pub(crate) fn roles() -> Vec<Role> {
    [verbs::ROLES, cm::ROLES, rpma::ROLES].concat()
}

/// Runs a role with the library preloaded.
fn child(role: &str, argument: &str) -> Outcome {
    let library = c_library("fault");
    let child = Child::role(role, argument, &[("LD_PRELOAD", library.as_os_str())])?;
    let limit = if full() { 500 } else { 50 };
    child.finish(Duration::from_secs(limit))?.success()?;
    Ok(())
}

type Arm = unsafe extern "C" fn(*const libc::c_char, u32, i32);
type Hits = unsafe extern "C" fn() -> u32;
type Rewrite = unsafe extern "C" fn(i32, i32, i32);
type GetCounts = unsafe extern "C" fn(*mut Counts);

/// What the preloaded library offers.
pub(crate) struct Fault {
    arm: Arm,
    hits: Hits,
    rewrite: Rewrite,
    counts: GetCounts,
}

/// `struct counts` of `libfault.c`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) cm_got: libc::c_ulong,
    pub(crate) cm_acked: libc::c_ulong,
    pub(crate) cq_got: libc::c_ulong,
    pub(crate) cq_acked: libc::c_ulong,
    pub(crate) busy: libc::c_ulong,
    pub(crate) cq_ack_calls: libc::c_ulong,
    pub(crate) cq_armed: libc::c_ulong,
}

impl Fault {
    pub(crate) fn find() -> Result<Self, Failed> {
        let symbol = |name: &CStr| {
            // SAFETY: the name ends in NUL.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            if found.is_null() {
                return Err(Failed::from(format!(
                    "the library is not preloaded: no {name:?}"
                )));
            }
            Ok(found)
        };
        let (arm, hits) = (symbol(c"rpma_fault_arm")?, symbol(c"rpma_fault_hits")?);
        let (rewrite, counts) = (
            symbol(c"rpma_fault_rewrite")?,
            symbol(c"rpma_fault_counts")?,
        );
        Ok(Self {
            // SAFETY: the C function has this signature.
            arm: unsafe { std::mem::transmute::<*mut libc::c_void, Arm>(arm) },
            // SAFETY: as above.
            hits: unsafe { std::mem::transmute::<*mut libc::c_void, Hits>(hits) },
            // SAFETY: as above.
            rewrite: unsafe { std::mem::transmute::<*mut libc::c_void, Rewrite>(rewrite) },
            // SAFETY: as above.
            counts: unsafe { std::mem::transmute::<*mut libc::c_void, GetCounts>(counts) },
        })
    }

    /// Lets the `nth` call of `name` from now on fail, 1 being the next; 0 means none.
    pub(crate) fn arm(&self, name: &str, nth: u32, errno: i32) -> Outcome {
        let name = CString::new(name)?;
        // SAFETY: the name is read during the call only.
        unsafe { (self.arm)(name.as_ptr(), nth, errno) };
        Ok(())
    }

    pub(crate) fn hits(&self) -> u32 {
        // SAFETY: no argument.
        unsafe { (self.hits)() }
    }

    /// Turns events of one kind into another with a status.
    pub(crate) fn rewrite(&self, from: EventKind, to: EventKind, status: i32) -> Outcome {
        let (from, to) = (i32::try_from(from.raw())?, i32::try_from(to.raw())?);
        // SAFETY: integers.
        unsafe { (self.rewrite)(from, to, status) };
        Ok(())
    }

    pub(crate) fn no_rewrite(&self) {
        // SAFETY: integers.
        unsafe { (self.rewrite)(-1, 0, 0) };
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        // SAFETY: a valid place of the struct's layout.
        unsafe { (self.counts)(&mut counts) };
        counts
    }

    /// Every event that was got is acknowledged, and no release was refused.
    pub(crate) fn balanced(&self) -> Outcome {
        let counts = self.counts();
        ensure!(counts.cm_got > 0, "no event was counted at all");
        ensure_eq!(
            counts.cm_acked,
            counts.cm_got,
            "connection events acknowledged, {counts:?}"
        );
        ensure_eq!(
            counts.cq_acked,
            counts.cq_got,
            "completion events acknowledged, {counts:?}"
        );
        ensure_eq!(counts.busy, 0, "releases that were refused as busy");
        Ok(())
    }
}
