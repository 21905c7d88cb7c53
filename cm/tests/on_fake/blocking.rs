//! What librdmacm waits for when an id is destroyed: every event that was got. With C's functions
//! alone, since nothing above them can leave one out.

use std::ptr::{self, NonNull};
use std::thread;
use std::time::Duration;

use cm::verbs::sys;
use cm::verbs::sys::fake::control;

/// An event that was got and not acknowledged, with its id and channel.
struct Held {
    channel: *mut sys::rdma_event_channel,
    id: *mut sys::rdma_cm_id,
    event: *mut sys::rdma_cm_event,
}

// SAFETY: C lets any thread use these.
unsafe impl Send for Held {}

impl Held {
    fn new() -> Self {
        // SAFETY: the call has no precondition.
        let channel = unsafe { sys::rdma_create_event_channel() };
        assert!(!channel.is_null());
        let mut id = ptr::null_mut();
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is live and the place valid.
        let ret = unsafe { sys::rdma_create_id(channel, &mut id, ptr::null_mut(), space) };
        assert_eq!(ret, 0);
        let mut to = libc::sockaddr_in {
            sin_family: libc::AF_INET.try_into().expect("16 bits"),
            sin_port: 7_u16.to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes([192, 0, 2, 1]),
            },
            sin_zero: [0; 8],
        };
        let to = (&raw mut to).cast();
        // SAFETY: the id is live and the address whole.
        let ret = unsafe { sys::rdma_resolve_addr(id, ptr::null_mut(), to, 1000) };
        assert_eq!(ret, 0);
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live and the place valid.
        let ret = unsafe { sys::rdma_get_cm_event(channel, &mut event) };
        assert_eq!(ret, 0);
        assert!(NonNull::new(event).is_some());
        Self { channel, id, event }
    }

    fn acknowledge(&self) {
        // SAFETY: the event was got and not acknowledged.
        let ret = unsafe { sys::rdma_ack_cm_event(self.event) };
        assert_eq!(ret, 0);
    }

    fn destroy(&self) {
        // SAFETY: nobody else uses the id.
        let ret = unsafe { sys::rdma_destroy_id(self.id) };
        assert_eq!(ret, 0);
        // SAFETY: its only id is gone.
        unsafe { sys::rdma_destroy_event_channel(self.channel) };
    }
}

#[test]
fn an_acknowledgement_of_another_thread_ends_the_wait() {
    let fake = control::session();
    let held = Held::new();
    let other = Held { ..held };
    let acknowledging = thread::spawn(move || {
        let other = other;
        thread::sleep(Duration::from_millis(30));
        other.acknowledge();
    });
    held.destroy();
    acknowledging.join().expect("no panic");
    fake.finish();
}

/// The rest ends the process, each in one of its own.
#[cfg(not(miri))]
mod reported {
    use std::process::Command;

    use super::*;

    /// Runs one of the ignored tests below, and gives what it wrote on its way out.
    fn stderr_of(test: &str) -> String {
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact"])
            .arg(format!("on_fake::blocking::reported::{test}"))
            .output()
            .expect("the test starts");
        assert!(!output.status.success(), "{test} went well");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    #[test]
    #[ignore = "run by the test below"]
    fn destroys_an_id_with_an_event_in_hand() {
        let fake = control::session();
        fake.set_patience(Duration::from_millis(50));
        Held::new().destroy();
        fake.finish();
    }

    #[test]
    fn an_id_that_is_destroyed_with_an_event_outstanding_is_reported() {
        let text = stderr_of("destroys_an_id_with_an_event_in_hand");
        let expected = "rdma_destroy_id would block for ever";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    #[ignore = "run by the test below"]
    fn acknowledges_an_event_twice() {
        let _fake = control::session();
        let held = Held::new();
        held.acknowledge();
        held.acknowledge();
    }

    #[test]
    fn an_event_that_is_acknowledged_twice_is_reported() {
        let text = stderr_of("acknowledges_an_event_twice");
        assert!(
            text.contains("rdma_ack_cm_event was given an event that is acknowledged"),
            "{text}"
        );
    }
}
