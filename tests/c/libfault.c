/* Preloaded into a test: counts events got and acknowledged, and makes the n-th call of a chosen
 * function fail. The test finds rpma_fault_* with dlsym.
 *
 * Environment: RPMA_FAULT_NO_DEVICE=1 hides all devices. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_reg_mr

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The fault that waits, if any. */
static char fault_name[64];
static unsigned fault_nth;
static int fault_errno;
static unsigned fault_hits;

static int rewrite_from = -1;
static int rewrite_to;
static int rewrite_status;

struct counts {
	unsigned long cm_got, cm_acked, cq_got, cq_acked;
	/* Releases that answered EBUSY. */
	unsigned long busy;
	/* Calls that acknowledge completion events, and that ask for the next one. */
	unsigned long cq_ack_calls, cq_armed;
};

static struct counts counts;

/* Lets the n-th call from now (1 is the next) of `name` fail; 0 takes the fault away. */
void rpma_fault_arm(const char *name, unsigned nth, int error)
{
	pthread_mutex_lock(&lock);
	strncpy(fault_name, name, sizeof(fault_name) - 1);
	fault_nth = nth;
	fault_errno = error;
	fault_hits = 0;
	pthread_mutex_unlock(&lock);
}

/* How often the fault has struck since it was armed. */
unsigned rpma_fault_hits(void)
{
	unsigned hits;

	pthread_mutex_lock(&lock);
	hits = fault_hits;
	pthread_mutex_unlock(&lock);
	return hits;
}

/* Events of kind `from` come out as `to` with a status; -1 ends that. */
void rpma_fault_rewrite(int from, int to, int status)
{
	pthread_mutex_lock(&lock);
	rewrite_from = from;
	rewrite_to = to;
	rewrite_status = status;
	pthread_mutex_unlock(&lock);
}

void rpma_fault_counts(struct counts *out)
{
	pthread_mutex_lock(&lock);
	*out = counts;
	pthread_mutex_unlock(&lock);
}

/* The errno with which this call has to fail, or 0. */
static int fails(const char *name)
{
	int error = 0;

	pthread_mutex_lock(&lock);
	if (fault_nth && !strcmp(name, fault_name) && --fault_nth == 0) {
		error = fault_errno;
		fault_hits++;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

static void add(unsigned long *count, unsigned long by)
{
	pthread_mutex_lock(&lock);
	*count += by;
	pthread_mutex_unlock(&lock);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Calls that return a pointer: NULL and errno on failure. */
#define POINTER(type, name, parameters, arguments)                                                 \
	type *name parameters                                                                      \
	{                                                                                          \
		int error = fails(#name);                                                          \
                                                                                                   \
		if (error) {                                                                       \
			errno = error;                                                             \
			return NULL;                                                               \
		}                                                                                  \
		return REAL(name) arguments;                                                       \
	}

/* Calls that return -1 and set errno. */
#define MINUS_ONE(name, parameters, arguments)                                                     \
	int name parameters                                                                        \
	{                                                                                          \
		int error = fails(#name);                                                          \
                                                                                                   \
		if (error) {                                                                       \
			errno = error;                                                             \
			return -1;                                                                 \
		}                                                                                  \
		return REAL(name) arguments;                                                       \
	}

POINTER(struct ibv_qp, ibv_create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr *init), (pd, init))
POINTER(struct ibv_cq, ibv_create_cq,
	(struct ibv_context * context, int entries, void *data, struct ibv_comp_channel *channel, int vector),
	(context, entries, data, channel, vector))
POINTER(struct ibv_pd, ibv_alloc_pd, (struct ibv_context * context), (context))
POINTER(struct ibv_comp_channel, ibv_create_comp_channel, (struct ibv_context * context), (context))
POINTER(struct ibv_mr, ibv_reg_mr, (struct ibv_pd * pd, void *addr, size_t length, int access),
	(pd, addr, length, access))
POINTER(struct ibv_mr, ibv_reg_mr_iova2,
	(struct ibv_pd * pd, void *addr, size_t length, uint64_t iova, unsigned int access),
	(pd, addr, length, iova, access))
POINTER(struct rdma_event_channel, rdma_create_event_channel, (void), ())

MINUS_ONE(rdma_create_id,
	  (struct rdma_event_channel * channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps),
	  (channel, id, context, ps))
MINUS_ONE(rdma_connect, (struct rdma_cm_id * id, struct rdma_conn_param *param), (id, param))
MINUS_ONE(rdma_accept, (struct rdma_cm_id * id, struct rdma_conn_param *param), (id, param))
MINUS_ONE(rdma_reject, (struct rdma_cm_id * id, const void *data, uint8_t len), (id, data, len))
MINUS_ONE(rdma_migrate_id, (struct rdma_cm_id * id, struct rdma_event_channel *channel), (id, channel))
MINUS_ONE(rdma_establish, (struct rdma_cm_id * id), (id))
MINUS_ONE(rdma_set_option, (struct rdma_cm_id * id, int level, int optname, void *optval, size_t optlen),
	  (id, level, optname, optval, optlen))
MINUS_ONE(rdma_init_qp_attr, (struct rdma_cm_id * id, struct ibv_qp_attr *attr, int *mask), (id, attr, mask))

/* Releases, which return an errno. */
#define RELEASE(name, type)                                                                        \
	int name(type *object)                                                                     \
	{                                                                                          \
		int ret = REAL(name)(object);                                                      \
                                                                                                   \
		if (ret == EBUSY || (ret == -1 && errno == EBUSY))                                 \
			add(&counts.busy, 1);                                                      \
		return ret;                                                                        \
	}

RELEASE(ibv_destroy_qp, struct ibv_qp)
RELEASE(ibv_destroy_cq, struct ibv_cq)
RELEASE(ibv_dealloc_pd, struct ibv_pd)
RELEASE(ibv_dereg_mr, struct ibv_mr)
RELEASE(ibv_destroy_comp_channel, struct ibv_comp_channel)

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int error = fails("ibv_modify_qp");

	return error ? error : REAL(ibv_modify_qp)(qp, attr, mask);
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	int ret = REAL(rdma_get_cm_event)(channel, event);

	if (ret == 0) {
		add(&counts.cm_got, 1);
		pthread_mutex_lock(&lock);
		if ((int)(*event)->event == rewrite_from) {
			(*event)->event = (enum rdma_cm_event_type)rewrite_to;
			(*event)->status = rewrite_status;
		}
		pthread_mutex_unlock(&lock);
	}
	return ret;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	add(&counts.cm_acked, 1);
	return REAL(rdma_ack_cm_event)(event);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
	int ret = REAL(ibv_get_cq_event)(channel, cq, context);

	if (ret == 0)
		add(&counts.cq_got, 1);
	return ret;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	add(&counts.cq_acked, n);
	add(&counts.cq_ack_calls, 1);
	REAL(ibv_ack_cq_events)(cq, n);
}

/* ibv_req_notify_cq is inline, and what it calls is the provider's: SoftRoCE's is this one of libibverbs. */
int ibv_cmd_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int ibv_cmd_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	add(&counts.cq_armed, 1);
	return REAL(ibv_cmd_req_notify_cq)(cq, solicited_only);
}

struct ibv_device **ibv_get_device_list(int *count)
{
	if (!getenv("RPMA_FAULT_NO_DEVICE"))
		return REAL(ibv_get_device_list)(count);
	if (count)
		*count = 0;
	return calloc(1, sizeof(struct ibv_device *));
}

void ibv_free_device_list(struct ibv_device **list)
{
	if (getenv("RPMA_FAULT_NO_DEVICE"))
		free(list);
	else
		REAL(ibv_free_device_list)(list);
}
