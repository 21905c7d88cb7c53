/* What the peers written with librpma share: arguments, deadlines, bytes that tell where they
 * belong, and the steps up to a connection.
 *
 * A peer is started as: PROGRAM client|server ADDRESS PORT [KEY=VALUE ...]; a server chooses its
 * port and prints it. It ends with one of the codes below. */
#ifndef RPMA_TEST_PEER_H
#define RPMA_TEST_PEER_H

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <librpma.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXIT_FAILED 1 /* a call failed, or something did not come in time */
#define EXIT_USAGE 2
#define EXIT_WRONG_BYTES 3 /* the other side sent something else than it should */

#define DEADLINE_MS 15000 /* for each wait */
#define WHOLE_S 50	  /* for the program, should a call block */

#define REQUEST_ROOM 56	 /* what an accepting side gets as private data */
#define RESPONSE_ROOM 196 /* what a connecting side gets */

static char **arguments;

static inline void begin(int argc, char **argv)
{
	if (argc < 4 || (strcmp(argv[1], "client") && strcmp(argv[1], "server"))) {
		fprintf(stderr, "usage: %s client|server ADDRESS PORT [KEY=VALUE ...]\n", argv[0]);
		exit(EXIT_USAGE);
	}
	arguments = argv;
	alarm(WHOLE_S);
}

static inline int is_client(void)
{
	return !strcmp(arguments[1], "client");
}

/* The text given for `key`, or `missing`. */
static inline const char *text(const char *key, const char *missing)
{
	size_t length = strlen(key);

	for (char **argument = arguments + 4; *argument; argument++)
		if (!strncmp(*argument, key, length) && (*argument)[length] == '=')
			return *argument + length + 1;
	return missing;
}

static inline uint64_t number(const char *key, uint64_t missing)
{
	const char *value = text(key, NULL);

	return value ? strtoull(value, NULL, 10) : missing;
}

static inline int is(const char *key, const char *value)
{
	return !strcmp(text(key, ""), value);
}

static inline void say(const char *line)
{
	puts(line);
	fflush(stdout);
}

static inline void must(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "failed: %s\n", what);
		exit(EXIT_FAILED);
	}
}

/* For results of librpma. */
static inline void done(int ret, const char *what)
{
	if (ret) {
		fprintf(stderr, "%s: %s\n", what, rpma_err_2str(ret));
		exit(EXIT_FAILED);
	}
}

/* The sequence that the Rust side has as `pattern`. */
static inline uint8_t pattern(uint64_t seed, uint64_t offset)
{
	uint64_t x = (seed ^ UINT64_C(0x5bf03635dcc9cf2d)) + offset;

	return (uint8_t)((x * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}

static inline void fill(void *to, uint64_t seed, size_t length)
{
	for (size_t n = 0; n < length; n++)
		((uint8_t *)to)[n] = pattern(seed, n);
}

static inline void wrong(const char *what, size_t offset, unsigned found, unsigned expected)
{
	fprintf(stderr, "wrong bytes: %s at %zu is %#x, must be %#x\n", what, offset, found, expected);
	exit(EXIT_WRONG_BYTES);
}

static inline void expect(const void *found, uint64_t seed, size_t length, const char *what)
{
	for (size_t n = 0; n < length; n++)
		if (((const uint8_t *)found)[n] != pattern(seed, n))
			wrong(what, n, ((const uint8_t *)found)[n], pattern(seed, n));
}

static inline void expect_all(const void *found, uint8_t byte, size_t length, const char *what)
{
	for (size_t n = 0; n < length; n++)
		if (((const uint8_t *)found)[n] != byte)
			wrong(what, n, ((const uint8_t *)found)[n], byte);
}

static inline void *pages(size_t length)
{
	void *memory = aligned_alloc(4096, length);

	must(memory != NULL, "aligned_alloc");
	memset(memory, 0xee, length);
	return memory;
}

static inline struct rpma_peer *make_peer(void)
{
	struct ibv_context *context;
	struct rpma_peer *peer;

	done(rpma_utils_get_ibv_context(arguments[2],
					is_client() ? RPMA_UTIL_IBV_CONTEXT_REMOTE : RPMA_UTIL_IBV_CONTEXT_LOCAL, &context),
	     "rpma_utils_get_ibv_context");
	done(rpma_peer_new(context, &peer), "rpma_peer_new");
	return peer;
}

/* librpma cannot tell a port of the system's choice, so free ones are looked for here. */
static inline struct rpma_ep *listen_somewhere(struct rpma_peer *peer)
{
	for (int attempt = 0; attempt < 100; attempt++) {
		struct rpma_ep *endpoint;
		char port[8];

		snprintf(port, sizeof(port), "%d", 20000 + (getpid() * 7 + attempt * 101) % 10000);
		if (!rpma_ep_listen(peer, arguments[2], port, &endpoint)) {
			printf("port %s\n", port);
			fflush(stdout);
			return endpoint;
		}
	}
	must(0, "rpma_ep_listen on one of 100 ports");
	return NULL;
}

static inline void wait_fd(int fd, const char *what)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };

	if (poll(&wanted, 1, DEADLINE_MS) != 1) {
		fprintf(stderr, "nothing came within %d ms: %s\n", DEADLINE_MS, what);
		exit(EXIT_FAILED);
	}
}

static inline struct rpma_conn_req *next_request(struct rpma_ep *endpoint, struct rpma_conn_cfg *config)
{
	struct rpma_conn_req *request;
	int fd;

	done(rpma_ep_get_fd(endpoint, &fd), "rpma_ep_get_fd");
	wait_fd(fd, "a connection request");
	done(rpma_ep_next_conn_req(endpoint, config, &request), "rpma_ep_next_conn_req");
	return request;
}

static inline struct rpma_conn_req *new_request(struct rpma_peer *peer, struct rpma_conn_cfg *config)
{
	struct rpma_conn_req *request;

	done(rpma_conn_req_new(peer, arguments[2], arguments[3], config, &request), "rpma_conn_req_new");
	return request;
}

static inline enum rpma_conn_event next_event(struct rpma_conn *connection)
{
	enum rpma_conn_event event;
	int fd;

	done(rpma_conn_get_event_fd(connection, &fd), "rpma_conn_get_event_fd");
	wait_fd(fd, "a connection event");
	done(rpma_conn_next_event(connection, &event), "rpma_conn_next_event");
	return event;
}

static inline void wait_event(struct rpma_conn *connection, enum rpma_conn_event expected)
{
	enum rpma_conn_event event = next_event(connection);

	if (event != expected) {
		fprintf(stderr, "%s instead of %s\n", rpma_utils_conn_event_2str(event),
			rpma_utils_conn_event_2str(expected));
		exit(EXIT_FAILED);
	}
}

/* Connects or accepts, and waits until the connection stands. */
static inline struct rpma_conn *establish(struct rpma_conn_req *request, void *data, uint8_t length)
{
	struct rpma_conn_private_data sent = { .ptr = data, .len = length };
	struct rpma_conn *connection;

	done(rpma_conn_req_connect(&request, length ? &sent : NULL, &connection), "rpma_conn_req_connect");
	wait_event(connection, RPMA_CONN_ESTABLISHED);
	return connection;
}

/* What the other side sent along, whose length must be the whole room. */
static inline const uint8_t *received_data(struct rpma_conn *connection)
{
	struct rpma_conn_private_data data;
	unsigned room = is_client() ? RESPONSE_ROOM : REQUEST_ROOM;

	done(rpma_conn_get_private_data(connection, &data), "rpma_conn_get_private_data");
	must(data.ptr != NULL, "private data are there");
	if (data.len != room)
		wrong("length of the private data", 0, data.len, room);
	return data.ptr;
}

/* Waits for the next completion of a queue with a channel of its own; it must be a success. */
static inline struct ibv_wc completion(struct rpma_cq *cq)
{
	struct ibv_wc wc;
	int fd, ret;

	done(rpma_cq_get_fd(cq, &fd), "rpma_cq_get_fd");
	/* An event may stand for completions that were taken before. */
	while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION) {
		wait_fd(fd, "a completion");
		done(rpma_cq_wait(cq), "rpma_cq_wait");
	}
	done(ret, "rpma_cq_get_wc");
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "operation %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
		exit(EXIT_FAILED);
	}
	return wc;
}

/* Ends the connection: this side first, with `ends=self`, or after the other side has. */
static inline void end(struct rpma_conn *connection)
{
	if (is("ends", "self")) {
		done(rpma_conn_disconnect(connection), "rpma_conn_disconnect");
		wait_event(connection, RPMA_CONN_CLOSED);
	} else {
		wait_event(connection, RPMA_CONN_CLOSED);
		rpma_conn_disconnect(connection);
	}
}

static inline void delete_connection(struct rpma_conn *connection)
{
	done(rpma_conn_delete(&connection), "rpma_conn_delete");
}

/* What the examples of librpma exchange: 28 bytes with a region's descriptor and a peer
 * configuration's. */
struct exchanged {
	uint16_t data_offset;
	uint8_t region_size;
	uint8_t config_size;
	uint8_t descriptors[24];
};

static inline struct exchanged describe(struct rpma_mr_local *region, int direct_write)
{
	struct exchanged out = { 0 };
	struct rpma_peer_cfg *config;
	size_t size;

	done(rpma_mr_get_descriptor_size(region, &size), "rpma_mr_get_descriptor_size");
	out.region_size = (uint8_t)size;
	done(rpma_mr_get_descriptor(region, out.descriptors), "rpma_mr_get_descriptor");
	done(rpma_peer_cfg_new(&config), "rpma_peer_cfg_new");
	done(rpma_peer_cfg_set_direct_write_to_pmem(config, direct_write), "rpma_peer_cfg_set_direct_write_to_pmem");
	done(rpma_peer_cfg_get_descriptor_size(config, &size), "rpma_peer_cfg_get_descriptor_size");
	out.config_size = (uint8_t)size;
	must(out.region_size + out.config_size <= (int)sizeof(out.descriptors), "descriptors fit");
	done(rpma_peer_cfg_get_descriptor(config, out.descriptors + out.region_size), "rpma_peer_cfg_get_descriptor");
	done(rpma_peer_cfg_delete(&config), "rpma_peer_cfg_delete");
	return out;
}

static inline struct exchanged received_description(struct rpma_conn *connection)
{
	struct exchanged in;

	memcpy(&in, received_data(connection), sizeof(in));
	if (in.region_size != 21)
		wrong("size of the region's descriptor", 2, in.region_size, 21);
	return in;
}

static inline struct rpma_mr_remote *remote_region(const struct exchanged *in)
{
	struct rpma_mr_remote *region;

	done(rpma_mr_remote_from_descriptor(in->descriptors, in->region_size, &region),
	     "rpma_mr_remote_from_descriptor");
	return region;
}

#endif
