//! The kernel's table: which attributes a transition of a queue pair must and may have.

use crate::bindings::{ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type};

/// Required and optional attributes, besides the state itself; `None` when there is no such transition.
pub(super) fn attributes(
    qp_type: ibv_qp_type,
    from: ibv_qp_state,
    to: ibv_qp_state,
) -> Option<(u32, u32)> {
    use ibv_qp_attr_mask as A;
    use ibv_qp_state as S;

    let (xrc_send, xrc_recv) = (
        qp_type == ibv_qp_type::IBV_QPT_XRC_SEND,
        qp_type == ibv_qp_type::IBV_QPT_XRC_RECV,
    );
    let rc = qp_type == ibv_qp_type::IBV_QPT_RC;
    let ud = qp_type == ibv_qp_type::IBV_QPT_UD;
    let (sends, receives) = (rc || xrc_send, rc || xrc_recv);
    let none = A(0);
    let only = |condition: bool, bits: A| if condition { bits } else { none };
    let init = if ud {
        A::IBV_QP_PKEY_INDEX | A::IBV_QP_PORT | A::IBV_QP_QKEY
    } else {
        A::IBV_QP_PKEY_INDEX | A::IBV_QP_PORT | A::IBV_QP_ACCESS_FLAGS
    };
    let paths = A::IBV_QP_ALT_PATH | A::IBV_QP_ACCESS_FLAGS | A::IBV_QP_PATH_MIG_STATE;
    let running = if ud {
        A::IBV_QP_CUR_STATE | A::IBV_QP_QKEY
    } else {
        A::IBV_QP_CUR_STATE | paths | only(receives, A::IBV_QP_MIN_RNR_TIMER)
    };
    let answers = only(
        receives,
        A::IBV_QP_MAX_DEST_RD_ATOMIC | A::IBV_QP_MIN_RNR_TIMER,
    );
    let retries = only(
        sends,
        A::IBV_QP_RETRY_CNT | A::IBV_QP_RNR_RETRY | A::IBV_QP_MAX_QP_RD_ATOMIC,
    );
    let timeout = only(sends || receives, A::IBV_QP_TIMEOUT);
    let (required, optional) = match (from, to) {
        (_, S::IBV_QPS_RESET) => (none, none),
        (S::IBV_QPS_RESET, S::IBV_QPS_ERR) => return None,
        (_, S::IBV_QPS_ERR) => (none, none),
        (S::IBV_QPS_RESET, S::IBV_QPS_INIT) => (init, none),
        (S::IBV_QPS_INIT, S::IBV_QPS_INIT) => (none, init),
        (S::IBV_QPS_INIT, S::IBV_QPS_RTR) if ud => (none, A::IBV_QP_PKEY_INDEX | A::IBV_QP_QKEY),
        (S::IBV_QPS_INIT, S::IBV_QPS_RTR) => {
            let all = A::IBV_QP_AV | A::IBV_QP_PATH_MTU | A::IBV_QP_DEST_QPN | A::IBV_QP_RQ_PSN;
            (
                all | answers,
                A::IBV_QP_ALT_PATH | A::IBV_QP_ACCESS_FLAGS | A::IBV_QP_PKEY_INDEX,
            )
        }
        (S::IBV_QPS_RTR, S::IBV_QPS_RTS) => (A::IBV_QP_SQ_PSN | timeout | retries, running),
        (S::IBV_QPS_RTS | S::IBV_QPS_SQD, S::IBV_QPS_RTS) => (none, running),
        (S::IBV_QPS_SQE, S::IBV_QPS_RTS) if ud => (none, running),
        (S::IBV_QPS_SQE, S::IBV_QPS_RTS) if !sends && !receives => {
            (none, A::IBV_QP_CUR_STATE | A::IBV_QP_ACCESS_FLAGS)
        }
        (S::IBV_QPS_RTS, S::IBV_QPS_SQD) => (none, A::IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (S::IBV_QPS_SQD, S::IBV_QPS_SQD) if ud => (none, A::IBV_QP_PKEY_INDEX | A::IBV_QP_QKEY),
        (S::IBV_QPS_SQD, S::IBV_QPS_SQD) => {
            let port = only(sends || receives, A::IBV_QP_PORT);
            let all = paths | A::IBV_QP_AV | A::IBV_QP_PKEY_INDEX;
            (none, all | port | timeout | retries | answers)
        }
        _ => return None,
    };
    Some((required.0, optional.0))
}
