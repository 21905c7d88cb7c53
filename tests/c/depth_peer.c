/* One end of a connection made with librdmacm, which asks for 255 reads in flight: more than any
 * device has, so librdmacm puts the device's limit in its place; libdepth.c undoes that. Each end
 * sends the descriptor of its memory as private data and reads the other's.
 *
 * usage: depth_peer client|server ADDRESS PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SIZE 4096
#define READS 32
#define PIECE (SIZE / READS)
#define DESCRIPTOR 21

static void check(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "%s failed: %s\n", what, strerror(errno));
		exit(1);
	}
}

/* Waits for an event; the caller acknowledges it. */
static struct rdma_cm_event *wait_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	check(poll(&fd, 1, 20000) == 1, rdma_event_str(kind));
	check(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
	if (event->event != kind) {
		fprintf(stderr, "%s (status %d) instead of %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(kind));
		exit(1);
	}
	return event;
}

static unsigned char *memory;
static unsigned char *copy;
static struct ibv_mr *memory_region, *copy_region;
static struct ibv_cq *cq;

static void make_queues(struct rdma_cm_id *id, int factor)
{
	struct ibv_qp_init_attr attr = { 0 };
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	check(pd != NULL, "ibv_alloc_pd");
	cq = ibv_create_cq(id->verbs, 2 * READS, NULL, NULL, 0);
	check(cq != NULL, "ibv_create_cq");
	attr.send_cq = cq;
	attr.recv_cq = cq;
	attr.cap.max_send_wr = READS;
	attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = 1;
	attr.cap.max_recv_sge = 1;
	attr.qp_type = IBV_QPT_RC;
	check(rdma_create_qp(id, pd, &attr) == 0, "rdma_create_qp");
	memory = aligned_alloc(SIZE, SIZE);
	copy = aligned_alloc(SIZE, SIZE);
	check(memory && copy, "aligned_alloc");
	for (int n = 0; n < SIZE; n++)
		memory[n] = (unsigned char)(n * factor + n / 256);
	memset(copy, 0, SIZE);
	memory_region = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	copy_region = ibv_reg_mr(pd, copy, SIZE, IBV_ACCESS_LOCAL_WRITE);
	check(memory_region && copy_region, "ibv_reg_mr");
}

static void describe(unsigned char *out)
{
	uint64_t address = htole64((uintptr_t)memory), size = htole64(SIZE);
	uint32_t rkey = htole32(memory_region->rkey);

	memcpy(out, &address, 8);
	memcpy(out + 8, &size, 8);
	memcpy(out + 16, &rkey, 4);
	out[20] = 1; /* the peer may read */
}

/* Reads the peer's memory in many pieces at once and compares it with what it must be. */
static void read_all(struct rdma_cm_id *id, const unsigned char *descriptor, int factor)
{
	uint64_t address;
	uint32_t rkey;
	int done = 0;
	time_t end = time(NULL) + 20;

	memcpy(&address, descriptor, 8);
	memcpy(&rkey, descriptor + 16, 4);
	for (int n = 0; n < READS; n++) {
		struct ibv_sge sge = { (uintptr_t)copy + n * PIECE, PIECE, copy_region->lkey };
		struct ibv_send_wr wr = { 0 }, *bad;

		wr.wr_id = n;
		wr.sg_list = &sge;
		wr.num_sge = 1;
		wr.opcode = IBV_WR_RDMA_READ;
		wr.send_flags = IBV_SEND_SIGNALED;
		wr.wr.rdma.remote_addr = le64toh(address) + n * PIECE;
		wr.wr.rdma.rkey = le32toh(rkey);
		check(ibv_post_send(id->qp, &wr, &bad) == 0, "ibv_post_send");
	}
	while (done < READS) {
		struct ibv_wc wc;
		int got = ibv_poll_cq(cq, 1, &wc);

		check(got >= 0, "ibv_poll_cq");
		if (got && wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "read %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
			exit(1);
		}
		done += got;
		if (time(NULL) > end) {
			fprintf(stderr, "%d of %d reads completed\n", done, READS);
			exit(1);
		}
	}
	for (int n = 0; n < SIZE; n++) {
		if (copy[n] != (unsigned char)(n * factor + n / 256)) {
			fprintf(stderr, "byte %d is %d\n", n, copy[n]);
			exit(1);
		}
	}
	printf("read ok\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *to;
	struct rdma_conn_param param = { 0 };
	unsigned char descriptor[DESCRIPTOR], peer[DESCRIPTOR];
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int client;

	if (argc != 4)
		return 2;
	client = !strcmp(argv[1], "client");
	check(channel != NULL, "rdma_create_event_channel");
	check(getaddrinfo(argv[2], argv[3], &hints, &to) == 0, "getaddrinfo");
	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");

	param.private_data = descriptor;
	param.private_data_len = DESCRIPTOR;
	param.responder_resources = 255;
	param.initiator_depth = 255;
	param.retry_count = 7;
	param.rnr_retry_count = 7;
	if (client) {
		check(rdma_resolve_addr(id, NULL, to->ai_addr, 2000) == 0, "rdma_resolve_addr");
		rdma_ack_cm_event(wait_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
		check(rdma_resolve_route(id, 2000) == 0, "rdma_resolve_route");
		rdma_ack_cm_event(wait_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
		make_queues(id, 7);
		describe(descriptor);
		check(rdma_connect(id, &param) == 0, "rdma_connect");
		event = wait_event(channel, RDMA_CM_EVENT_ESTABLISHED);
		check(event->param.conn.private_data_len >= DESCRIPTOR, "private data");
		memcpy(peer, event->param.conn.private_data, DESCRIPTOR);
		rdma_ack_cm_event(event);
	} else {
		struct rdma_cm_id *listener = id;

		check(rdma_bind_addr(listener, to->ai_addr) == 0, "rdma_bind_addr");
		check(rdma_listen(listener, 4) == 0, "rdma_listen");
		printf("port %u\n", ntohs(rdma_get_src_port(listener)));
		fflush(stdout);
		event = wait_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		check(event->param.conn.private_data_len >= DESCRIPTOR, "private data");
		memcpy(peer, event->param.conn.private_data, DESCRIPTOR);
		id = event->id;
		rdma_ack_cm_event(event);
		make_queues(id, 7);
		describe(descriptor);
		check(rdma_accept(id, &param) == 0, "rdma_accept");
		rdma_ack_cm_event(wait_event(channel, RDMA_CM_EVENT_ESTABLISHED));
	}
	read_all(id, peer, 5);
	rdma_ack_cm_event(wait_event(channel, RDMA_CM_EVENT_DISCONNECTED));
	rdma_disconnect(id);
	return 0;
}
