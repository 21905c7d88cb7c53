/* Preloaded into a program under test: counts the objects that it makes, those that it releases
 * and the releases that fail, and lets the n-th call of a chosen function fail, as on a machine
 * that lacks something.
 *
 * Environment:
 *   RPMA_RELEASE_REPORT=FILE   where to write "KIND MADE RELEASED FAILED ERRNO", a line for every
 *                              kind of object, at the end of the program
 *   RPMA_RELEASE_FAIL=NAME:N   the call that fails, with ENOMEM; N counts from 1 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_reg_mr

enum kind { PD, MR, CQ, CHANNEL, QP, ID, KINDS };

static const char *const kinds[KINDS] = { "pd", "mr", "cq", "channel", "qp", "id" };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long made[KINDS], released[KINDS], failed[KINDS];
static int last_error[KINDS];
static unsigned asked;

static void *next(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found) {
		fprintf(stderr, "librelease: no %s\n", name);
		abort();
	}
	return found;
}

static void count_made(enum kind kind)
{
	pthread_mutex_lock(&lock);
	made[kind]++;
	pthread_mutex_unlock(&lock);
}

static void count_released(enum kind kind, int error)
{
	pthread_mutex_lock(&lock);
	if (error) {
		failed[kind]++;
		last_error[kind] = error;
	} else {
		released[kind]++;
	}
	pthread_mutex_unlock(&lock);
}

/* Whether this is the call that has to fail. */
static int fails(const char *name)
{
	const char *wanted = getenv("RPMA_RELEASE_FAIL");
	size_t length = strlen(name);
	int hit = 0;

	if (wanted && !strncmp(wanted, name, length) && wanted[length] == ':') {
		pthread_mutex_lock(&lock);
		hit = ++asked == (unsigned)atoi(wanted + length + 1);
		pthread_mutex_unlock(&lock);
	}
	if (hit)
		errno = ENOMEM;
	return hit;
}

__attribute__((destructor)) static void report(void)
{
	const char *path = getenv("RPMA_RELEASE_REPORT");
	FILE *file = path ? fopen(path, "w") : NULL;
	int i;

	if (!file)
		return;
	for (i = 0; i < KINDS; i++)
		fprintf(file, "%s %lu %lu %lu %d\n", kinds[i], made[i], released[i], failed[i],
			last_error[i]);
	fclose(file);
}

/* Those that release and give the errno back. */
#define RELEASE(kind, name, type)                                                                  \
	int name(type *object)                                                                     \
	{                                                                                          \
		int (*real)(type *) = next(#name);                                                 \
		int error = real(object);                                                          \
                                                                                                   \
		count_released(kind, error);                                                       \
		return error;                                                                      \
	}

RELEASE(PD, ibv_dealloc_pd, struct ibv_pd)
RELEASE(MR, ibv_dereg_mr, struct ibv_mr)
RELEASE(CQ, ibv_destroy_cq, struct ibv_cq)
RELEASE(CHANNEL, ibv_destroy_comp_channel, struct ibv_comp_channel)
RELEASE(QP, ibv_destroy_qp, struct ibv_qp)

int rdma_destroy_id(struct rdma_cm_id *id)
{
	int (*real)(struct rdma_cm_id *) = next("rdma_destroy_id");
	int ret = real(id);
	int error = errno;

	count_released(ID, ret ? error : 0);
	errno = error;
	return ret;
}

/* Those that make, and give NULL with errno set when they cannot. */
#define MAKE(kind, type, name, parameters, arguments)                                              \
	type *name parameters                                                                      \
	{                                                                                          \
		type *(*real) parameters = next(#name);                                            \
		type *object = fails(#name) ? NULL : real arguments;                               \
                                                                                                   \
		if (object)                                                                        \
			count_made(kind);                                                          \
		return object;                                                                     \
	}

MAKE(PD, struct ibv_pd, ibv_alloc_pd, (struct ibv_context * context), (context))
MAKE(CHANNEL, struct ibv_comp_channel, ibv_create_comp_channel, (struct ibv_context * context),
     (context))
MAKE(CQ, struct ibv_cq, ibv_create_cq,
     (struct ibv_context * context, int cqe, void *user, struct ibv_comp_channel *channel,
      int vector),
     (context, cqe, user, channel, vector))
MAKE(QP, struct ibv_qp, ibv_create_qp,
     (struct ibv_pd * pd, struct ibv_qp_init_attr *attributes), (pd, attributes))
MAKE(MR, struct ibv_mr, ibv_reg_mr,
     (struct ibv_pd * pd, void *address, size_t length, int access),
     (pd, address, length, access))
MAKE(MR, struct ibv_mr, ibv_reg_mr_iova2,
     (struct ibv_pd * pd, void *address, size_t length, uint64_t iova, unsigned int access),
     (pd, address, length, iova, access))

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
		   enum rdma_port_space space)
{
	int (*real)(struct rdma_event_channel *, struct rdma_cm_id **, void *,
		    enum rdma_port_space) = next("rdma_create_id");
	int ret = fails("rdma_create_id") ? -1 : real(channel, id, context, space);

	if (!ret)
		count_made(ID);
	return ret;
}

/* A connection request brings an id with it. */
int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	int (*real)(struct rdma_event_channel *, struct rdma_cm_event **) =
		next("rdma_get_cm_event");
	int ret = real(channel, event);

	if (!ret && (*event)->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		count_made(ID);
	return ret;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct rdma_event_channel *(*real)(void) = next("rdma_create_event_channel");

	return fails("rdma_create_event_channel") ? NULL : real();
}

/* Those that make nothing, and give -1 with errno set when they fail. */
#define STEP(name, parameters, arguments)                                                          \
	int name parameters                                                                        \
	{                                                                                          \
		int (*real) parameters = next(#name);                                              \
                                                                                                   \
		return fails(#name) ? -1 : real arguments;                                         \
	}

STEP(rdma_bind_addr, (struct rdma_cm_id * id, struct sockaddr *address), (id, address))
STEP(rdma_resolve_addr,
     (struct rdma_cm_id * id, struct sockaddr *from, struct sockaddr *to, int timeout),
     (id, from, to, timeout))
STEP(rdma_resolve_route, (struct rdma_cm_id * id, int timeout), (id, timeout))
STEP(rdma_listen, (struct rdma_cm_id * id, int backlog), (id, backlog))
STEP(rdma_connect, (struct rdma_cm_id * id, struct rdma_conn_param *parameters), (id, parameters))
STEP(rdma_accept, (struct rdma_cm_id * id, struct rdma_conn_param *parameters), (id, parameters))
STEP(rdma_establish, (struct rdma_cm_id * id), (id))
