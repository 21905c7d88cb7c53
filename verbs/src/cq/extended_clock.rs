//! The device's clock, which completions are stamped with.

use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{Error, from_return};

impl Context {
    /// What the device's clock shows now, in ticks: comparable with
    /// [`ExtendedCompletion::timestamp`](crate::ExtendedCompletion::timestamp).
    ///
    /// It runs at [`hca_core_clock`](crate::ExtendedAttributes::hca_core_clock) kHz.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the device has no clock, such
    /// as SoftRoCE.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn raw_clock(&self) -> Result<u64, Error> {
        let verb = "ibv_query_rt_values_ex";
        let raw = self.raw_checked(verb)?;
        let wanted = sys::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
        let mut values = sys::ibv_values_ex {
            comp_mask: wanted,
            ..Default::default()
        };
        // SAFETY: the context is open and the struct says what is wanted.
        let ret = unsafe { sys::ibv_query_rt_values_ex(raw, &mut values) };
        let detail = || format!("device {}", self.name());
        from_return(verb, ret).map_err(|error| error.with_detail(detail()))?;
        if values.comp_mask & wanted == 0 {
            // What was left out is what the provider does not have.
            return Err(Error::from_errno(verb, libc::EOPNOTSUPP).with_detail(detail()));
        }
        // Providers give ticks in the place of nanoseconds, also more than a second has.
        let seconds = values.raw_clock.tv_sec.cast_unsigned();
        let rest = values.raw_clock.tv_nsec.cast_unsigned();
        Ok(seconds.wrapping_mul(1_000_000_000).wrapping_add(rest))
    }
}
