//! Functions that go through the extended table, with all of it there, part of it, or none.

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;

use rdma_core_sys::*;

use crate::fixture::{Fixture, Reach};
use crate::record::{Word, observe, record, token};
use crate::shim;

/// One test per function: with each reach of the table, and with an empty slot, Rust and C must do the same.
macro_rules! extended {
    ($f:ident: $(
        $name:ident($($arg:ident: $ty:ty = $value:expr),* $(,)?) -> $ret:ty => $slot:ident;
    )*) => {$(
        #[test]
        fn $name() {
            unsafe extern "C" fn recorder($($arg: $ty),*) -> $ret {
                record(stringify!($slot), &[$(Word::word($arg)),*]);
                Word::sample()
            }
            let $f = Fixture::new();
            // SAFETY: the type is that of the slot, which the header's function has too.
            let c = unsafe { shim::inline::<unsafe extern "C" fn($($ty),*) -> $ret>(stringify!($name)) };
            for reach in Reach::EACH {
                for filled in [true, false] {
                    $f.set(reach, offset_of!(verbs_context, $slot));
                    // SAFETY: the table is live and known to this thread alone.
                    unsafe { (*$f.vctx).$slot = if filled { Some(recorder) } else { None } };
                    if !(reach.has_slot() && filled) && stringify!($name) == "ibv_close_xrcd" {
                        // C follows the pointer unchecked.
                        continue;
                    }
                    // SAFETY: the objects are live and the recording function follows no pointer.
                    let ours = observe(|| unsafe { rdma_core_sys::$name($($value),*) });
                    // SAFETY: as above.
                    let theirs = observe(|| unsafe { c($($value),*) });
                    assert_eq!(ours, theirs, "{reach:?}, slot filled: {filled}");
                    assert_eq!(ours.calls.len(), usize::from(reach.has_slot() && filled), "{reach:?}, slot filled: {filled}");
                }
            }
        }
    )*};
}

extended! { f:
    ibv_create_cq_ex(context: *mut ibv_context = f.context, attr: *mut ibv_cq_init_attr_ex = token(1)) -> *mut ibv_cq_ex
        => create_cq_ex;
    ibv_modify_cq(cq: *mut ibv_cq = f.cq, attr: *mut ibv_modify_cq_attr = token(1)) -> c_int => modify_cq;
    ibv_query_rt_values_ex(context: *mut ibv_context = f.context, values: *mut ibv_values_ex = token(1)) -> c_int
        => query_rt_values;
    ibv_open_qp(context: *mut ibv_context = f.context, attr: *mut ibv_qp_open_attr = token(1)) -> *mut ibv_qp => open_qp;
    ibv_modify_qp_rate_limit(qp: *mut ibv_qp = f.qp, attr: *mut ibv_qp_rate_limit_attr = token(1)) -> c_int
        => modify_qp_rate_limit;
    ibv_get_srq_num(srq: *mut ibv_srq = f.srq, number: *mut u32 = token(1)) -> c_int => get_srq_num;
    ibv_alloc_dm(context: *mut ibv_context = f.context, attr: *mut ibv_alloc_dm_attr = token(1)) -> *mut ibv_dm => alloc_dm;
    ibv_free_dm(dm: *mut ibv_dm = f.dm) -> c_int => free_dm;
    ibv_reg_dm_mr(pd: *mut ibv_pd = f.pd, dm: *mut ibv_dm = f.dm, offset: u64 = 1, length: usize = 2, access: c_uint = 3)
        -> *mut ibv_mr => reg_dm_mr;
    ibv_alloc_td(context: *mut ibv_context = f.context, attr: *mut ibv_td_init_attr = token(1)) -> *mut ibv_td => alloc_td;
    ibv_dealloc_td(td: *mut ibv_td = f.td) -> c_int => dealloc_td;
    ibv_alloc_parent_domain(context: *mut ibv_context = f.context, attr: *mut ibv_parent_domain_init_attr = token(1))
        -> *mut ibv_pd => alloc_parent_domain;
    ibv_open_xrcd(context: *mut ibv_context = f.context, attr: *mut ibv_xrcd_init_attr = token(1)) -> *mut ibv_xrcd
        => open_xrcd;
    ibv_close_xrcd(xrcd: *mut ibv_xrcd = f.xrcd) -> c_int => close_xrcd;
    ibv_create_flow(qp: *mut ibv_qp = f.qp, attr: *mut ibv_flow_attr = token(1)) -> *mut ibv_flow => ibv_create_flow;
    ibv_destroy_flow(flow: *mut ibv_flow = f.flow) -> c_int => ibv_destroy_flow;
    ibv_create_flow_action_esp(context: *mut ibv_context = f.context, attr: *mut ibv_flow_action_esp_attr = token(1))
        -> *mut ibv_flow_action => create_flow_action_esp;
    ibv_modify_flow_action_esp(action: *mut ibv_flow_action = f.action, attr: *mut ibv_flow_action_esp_attr = token(1))
        -> c_int => modify_flow_action_esp;
    ibv_destroy_flow_action(action: *mut ibv_flow_action = f.action) -> c_int => destroy_flow_action;
    ibv_create_counters(context: *mut ibv_context = f.context, attr: *mut ibv_counters_init_attr = token(1))
        -> *mut ibv_counters => create_counters;
    ibv_destroy_counters(counters: *mut ibv_counters = f.counters) -> c_int => destroy_counters;
    ibv_attach_counters_point_flow(counters: *mut ibv_counters = f.counters, attr: *mut ibv_counter_attach_attr = token(1),
        flow: *mut ibv_flow = f.flow) -> c_int => attach_counters_point_flow;
    ibv_read_counters(counters: *mut ibv_counters = f.counters, values: *mut u64 = token(1), n: u32 = 2, flags: u32 = 3)
        -> c_int => read_counters;
    ibv_modify_wq(wq: *mut ibv_wq = f.wq, attr: *mut ibv_wq_attr = token(1)) -> c_int => modify_wq;
    ibv_destroy_wq(wq: *mut ibv_wq = f.wq) -> c_int => destroy_wq;
    ibv_create_rwq_ind_table(context: *mut ibv_context = f.context, attr: *mut ibv_rwq_ind_table_init_attr = token(1))
        -> *mut ibv_rwq_ind_table => create_rwq_ind_table;
    ibv_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table = f.table) -> c_int => destroy_rwq_ind_table;
    ibv_advise_mr(pd: *mut ibv_pd = f.pd, advice: ibv_advise_mr_advice = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, flags: u32 = 1,
        list: *mut ibv_sge = token(2), n: u32 = 3) -> c_int => advise_mr;
    ibv_alloc_null_mr(pd: *mut ibv_pd = f.pd) -> *mut ibv_mr => alloc_null_mr;
}

#[test]
fn closing_an_xrc_domain_without_the_operation_is_refused() {
    let f = Fixture::new();
    // SAFETY: the domain is live.
    let ret = unsafe { rdma_core_sys::ibv_close_xrcd(f.xrcd) };
    assert_eq!(ret, libc::EOPNOTSUPP);
}

#[test]
fn posting_tag_operations_without_the_operation_names_the_first() {
    unsafe extern "C" fn recorder(
        srq: *mut ibv_srq,
        op: *mut ibv_ops_wr,
        bad: *mut *mut ibv_ops_wr,
    ) -> c_int {
        record("post_srq_ops", &[srq.word(), op.word(), bad.word()]);
        Word::sample()
    }
    type Post = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int;
    let f = Fixture::new();
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<Post>("ibv_post_srq_ops") };
    // SAFETY: the table is live and known to this thread alone.
    unsafe { (*f.vctx).post_srq_ops = Some(recorder) };
    for reach in Reach::EACH {
        f.set(reach, offset_of!(verbs_context, post_srq_ops));
        let mut bad = std::ptr::null_mut();
        let place = &raw mut bad;
        // SAFETY: the queue is live and the recording function follows no pointer.
        let ours = observe(|| unsafe { rdma_core_sys::ibv_post_srq_ops(f.srq, token(1), place) });
        let our_bad = std::mem::replace(&mut bad, std::ptr::null_mut());
        let place = &raw mut bad;
        // SAFETY: as above.
        let theirs = observe(|| unsafe { c(f.srq, token(1), place) });
        assert_eq!((ours, our_bad), (theirs, bad), "{reach:?}");
        assert_eq!(our_bad.is_null(), reach.has_slot());
    }
}

#[test]
fn creating_a_queue_pair_with_only_a_domain_calls_the_plain_function() {
    unsafe extern "C" fn recorder(
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        record("create_qp_ex", &[context.word(), attr.word()]);
        Word::sample()
    }
    type Create = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    let f = Fixture::new();
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<Create>("ibv_create_qp_ex") };
    // SAFETY: the table is live and known to this thread alone.
    unsafe { (*f.vctx).create_qp_ex = Some(recorder) };
    for reach in Reach::EACH {
        f.set(reach, offset_of!(verbs_context, create_qp_ex));
        for comp_mask in 0..128 {
            let mut attr = ibv_qp_init_attr_ex {
                comp_mask,
                pd: f.pd,
                ..Default::default()
            };
            let attr = &raw mut attr;
            // SAFETY: context and attributes are live.
            let ours = observe(|| unsafe { rdma_core_sys::ibv_create_qp_ex(f.context, attr) });
            // SAFETY: as above.
            let theirs = observe(|| unsafe { c(f.context, attr) });
            assert_eq!(ours, theirs, "{reach:?}, mask {comp_mask}");
            let plain = comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
            assert_eq!(
                ours.calls
                    .first()
                    .is_some_and(|call| call.name == "ibv_create_qp"),
                plain
            );
        }
    }
}

#[test]
fn creating_a_basic_shared_queue_with_only_a_domain_calls_the_plain_function() {
    unsafe extern "C" fn recorder(
        context: *mut ibv_context,
        attr: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq {
        record("create_srq_ex", &[context.word(), attr.word()]);
        Word::sample()
    }
    type Create = unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
    let f = Fixture::new();
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<Create>("ibv_create_srq_ex") };
    // SAFETY: the table is live and known to this thread alone.
    unsafe { (*f.vctx).create_srq_ex = Some(recorder) };
    let mut plain = 0;
    for reach in Reach::EACH {
        f.set(reach, offset_of!(verbs_context, create_srq_ex));
        for comp_mask in 0..64 {
            for kind in 0..3 {
                let mut attr = ibv_srq_init_attr_ex {
                    comp_mask,
                    srq_type: ibv_srq_type(kind),
                    pd: f.pd,
                    ..Default::default()
                };
                let attr = &raw mut attr;
                // SAFETY: context and attributes are live.
                let ours = observe(|| unsafe { rdma_core_sys::ibv_create_srq_ex(f.context, attr) });
                // SAFETY: as above.
                let theirs = observe(|| unsafe { c(f.context, attr) });
                assert_eq!(ours, theirs, "{reach:?}, mask {comp_mask}, type {kind}");
                plain += usize::from(
                    ours.calls
                        .first()
                        .is_some_and(|call| call.name == "ibv_create_srq"),
                );
            }
        }
    }
    // For each reach: a domain alone with any of the three types, and with the type told only the basic one.
    assert_eq!(plain, Reach::EACH.len() * 4);
}

#[test]
fn a_new_work_queue_gets_its_context_and_locks() {
    thread_local! {
        static MADE: std::cell::Cell<*mut ibv_wq> = const { std::cell::Cell::new(std::ptr::null_mut()) };
    }
    unsafe extern "C" fn recorder(
        context: *mut ibv_context,
        attr: *mut ibv_wq_init_attr,
    ) -> *mut ibv_wq {
        record("create_wq", &[context.word(), attr.word()]);
        MADE.get()
    }
    type Create = unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq;
    let f = Fixture::new();
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<Create>("ibv_create_wq") };
    // SAFETY: the table is live and known to this thread alone.
    unsafe { (*f.vctx).create_wq = Some(recorder) };
    let mut attr = ibv_wq_init_attr {
        wq_context: token(9),
        ..Default::default()
    };
    let attr = &raw mut attr;
    for reach in Reach::EACH {
        f.set(reach, offset_of!(verbs_context, create_wq));
        // A queue as a provider may return it: nothing initialised.
        let mut made = std::mem::MaybeUninit::<ibv_wq>::uninit();
        let bytes = |made: &std::mem::MaybeUninit<ibv_wq>| {
            // SAFETY: every byte was written before the call, and the call writes over some.
            unsafe { std::slice::from_raw_parts(made.as_ptr().cast::<u8>(), size_of::<ibv_wq>()) }
                .to_vec()
        };
        MADE.set(made.as_mut_ptr());
        // SAFETY: the place is as large as the struct.
        unsafe { made.as_mut_ptr().write_bytes(0xaa, 1) };
        // SAFETY: context and attributes are live, and the queue that comes back is ours.
        let ours = observe(|| unsafe { rdma_core_sys::ibv_create_wq(f.context, attr) });
        let our_bytes = bytes(&made);
        // SAFETY: the place is as large as the struct.
        unsafe { made.as_mut_ptr().write_bytes(0xaa, 1) };
        // SAFETY: as above.
        let theirs = observe(|| unsafe { c(f.context, attr) });
        assert_eq!((ours, our_bytes), (theirs, bytes(&made)), "{reach:?}");
    }
}
