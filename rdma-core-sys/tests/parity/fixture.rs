//! Made-up objects: zeroed structs that know their context, whose tables the tests fill.

use rdma_core_sys::*;

/// Room behind an extended queue pair for slots that later releases added.
#[repr(C)]
#[derive(Default)]
pub(crate) struct LongQp {
    qp: ibv_qp_ex,
    tail: [usize; 8],
}

/// One of each object. They are leaked: a test makes a few, and C has seen their addresses.
pub(crate) struct Fixture {
    pub(crate) vctx: *mut verbs_context,
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) mr: *mut ibv_mr,
    pub(crate) mw: *mut ibv_mw,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) cq_ex: *mut ibv_cq_ex,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) qp_ex: *mut ibv_qp_ex,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) wq: *mut ibv_wq,
    pub(crate) table: *mut ibv_rwq_ind_table,
    pub(crate) dm: *mut ibv_dm,
    pub(crate) td: *mut ibv_td,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) flow: *mut ibv_flow,
    pub(crate) action: *mut ibv_flow_action,
    pub(crate) counters: *mut ibv_counters,
    pub(crate) id: *mut rdma_cm_id,
}

fn leak<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let mut extended = verbs_context {
            sz: size_of::<verbs_context>(),
            ..Default::default()
        };
        extended.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
        let vctx = leak(extended);
        // SAFETY: the place lies within the struct just made.
        let context = unsafe { &raw mut (*vctx).context };
        let pd = leak(ibv_pd {
            context,
            ..Default::default()
        });
        let mut long = LongQp::default();
        long.qp.qp_base.context = context;
        let cq = leak(ibv_cq {
            context,
            ..Default::default()
        });
        let qp = leak(ibv_qp {
            context,
            ..Default::default()
        });
        let id = leak(rdma_cm_id {
            verbs: context,
            pd,
            qp,
            send_cq: cq,
            recv_cq: cq,
            ..Default::default()
        });
        Self {
            vctx,
            context,
            pd,
            mr: leak(ibv_mr {
                context,
                pd,
                ..Default::default()
            }),
            mw: leak(ibv_mw {
                context,
                pd,
                ..Default::default()
            }),
            cq,
            cq_ex: leak(ibv_cq_ex {
                context,
                ..Default::default()
            }),
            qp,
            qp_ex: leak(long).cast(),
            srq: leak(ibv_srq {
                context,
                ..Default::default()
            }),
            wq: leak(ibv_wq {
                context,
                ..Default::default()
            }),
            table: leak(ibv_rwq_ind_table {
                context,
                ..Default::default()
            }),
            dm: leak(ibv_dm {
                context,
                ..Default::default()
            }),
            td: leak(ibv_td { context }),
            xrcd: leak(ibv_xrcd { context }),
            flow: leak(ibv_flow {
                context,
                ..Default::default()
            }),
            action: leak(ibv_flow_action { context }),
            counters: leak(ibv_counters { context }),
            id,
        }
    }

    /// The plain operation table.
    pub(crate) fn ops(&self) -> *mut ibv_context_ops {
        // SAFETY: the place lies within a live struct.
        unsafe { &raw mut (*self.context).ops }
    }

    /// Sets how much of the extended table there is.
    pub(crate) fn set(&self, reach: Reach, slot_offset: usize) {
        let to_the_end = size_of::<verbs_context>() - slot_offset;
        let (size, abi) = match reach {
            Reach::All => (size_of::<verbs_context>(), __VERBS_ABI_IS_EXTENDED),
            Reach::JustTheSlot => (to_the_end, __VERBS_ABI_IS_EXTENDED),
            Reach::ShortOfTheSlot => (to_the_end - 1, __VERBS_ABI_IS_EXTENDED),
            Reach::NotExtended => (size_of::<verbs_context>(), std::ptr::null_mut()),
        };
        // SAFETY: the struct is live and only this thread knows it.
        unsafe { (*self.vctx).sz = size };
        // SAFETY: as above.
        unsafe { (*self.context).abi_compat = abi };
    }
}

/// How much of the extended table a context has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    All,
    JustTheSlot,
    ShortOfTheSlot,
    NotExtended,
}

impl Reach {
    pub(crate) const EACH: [Self; 4] = [
        Self::All,
        Self::JustTheSlot,
        Self::ShortOfTheSlot,
        Self::NotExtended,
    ];

    /// Whether the slot counts as there.
    pub(crate) fn has_slot(self) -> bool {
        matches!(self, Self::All | Self::JustTheSlot)
    }
}
