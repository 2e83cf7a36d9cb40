/*
 * An open that is under way. XIO has no time-out for an open. A timer therefore compares the time with libphoebus's
 * deadline, and cancels the operation below once the deadline has passed.
 */
#include "opening.h"

#include "error.h"
#include "knock.h"
#include "say.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Period of the timer. Deadlines are seconds. Each tick cancels again, since an operation may be between two steps. */
#define TICK_MS 200
/* Longest knock: a few round trips of any path. A firewall that drops the SYN would make it wait for nothing. */
#define KNOCK_NS 2000000000u

uint64_t px_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void release(struct px_opening *o)
{
    int left;

    globus_mutex_lock(&o->lock);
    left = --o->references;
    globus_mutex_unlock(&o->lock);
    if (left > 0)
        return;
    globus_mutex_destroy(&o->lock);
    phoebus_handshake_free(o->handshake);
    phoebus_options_free(o->options);
    globus_xio_contact_destroy(&o->contact);
    px_tcp_clear(&o->saved);
    free(o->destination);
    free(o);
}

static void timer_gone(void *arg)
{
    release(arg);
}

/* Cancels the operation below once its deadline has passed. Ends a knock that has an answer or is overdue. */
static void tick(void *arg)
{
    struct px_opening *o = arg;
    globus_bool_t over;

    globus_mutex_lock(&o->lock);
    if (o->under_way && px_now() >= o->deadline) {
        o->timed_out = GLOBUS_TRUE;
        px_forget(globus_xio_driver_operation_cancel(o->below, o->op));
    }
    over = o->knock >= 0 && (px_knock_is_heard(o->knock) || px_now() >= o->deadline);
    if (over) {
        px_knock_end(o->knock);
        o->knock = -1;
    }
    globus_mutex_unlock(&o->lock);
    if (over)
        o->over(o);
}

void px_opening_knock(struct px_opening *o, void (*over)(struct px_opening *))
{
    int fd = px_knock(o->contact.host, o->contact.port);

    if (fd < 0) {
        over(o);
        return;
    }
    globus_mutex_lock(&o->lock);
    o->over = over;
    o->deadline = px_now() + KNOCK_NS;
    o->knock = fd;
    globus_mutex_unlock(&o->lock);
}

void px_opening_below(struct px_opening *o)
{
    globus_mutex_lock(&o->lock);
    o->deadline = o->handshake ? phoebus_handshake_deadline(o->handshake) : UINT64_MAX;
    o->under_way = GLOBUS_TRUE;
    globus_mutex_unlock(&o->lock);
}

void px_opening_back(struct px_opening *o)
{
    globus_mutex_lock(&o->lock);
    o->under_way = GLOBUS_FALSE;
    globus_mutex_unlock(&o->lock);
}

int px_opening_given_up(struct px_opening *o)
{
    return !o->timed_out && globus_xio_operation_is_canceled(o->op);
}

/* Reads a contact's port, and writes host and port as text. Returns -1 if the contact names no destination. */
static int destination(const globus_xio_contact_t *contact, uint16_t *port, char **text)
{
    char *end;
    unsigned long number;

    if (contact->host == NULL || contact->port == NULL)
        return -1;
    number = strtoul(contact->port, &end, 10);
    if (*contact->port == '\0' || *end != '\0' || number == 0 || number > 65535)
        return -1;
    *port = (uint16_t)number;
    return asprintf(text, strchr(contact->host, ':') ? "[%s]:%s" : "%s:%s", contact->host, contact->port) < 0 ? -1 : 0;
}

static globus_result_t prepare(struct px_opening *o, const globus_xio_contact_t *contact, const px_attr *attr)
{
    globus_result_t result = px_attr_check(attr);
    char gateway[2];
    uint16_t port;

    if (result != GLOBUS_SUCCESS)
        return result;
    if ((o->tcp = px_tcp_driver(o->op)) == NULL)
        return px_error(EPROTO, "the driver below is not tcp; expected a stack such as tcp,phoebus,gsi");
    if (destination(contact, &port, &o->destination) != 0)
        return px_error(EINVAL, "%s:%s is no destination; expected a host and a port number",
                        contact->host ? contact->host : "", contact->port ? contact->port : "");
    phoebus_options_get(attr->options, "congestion_control", o->control, sizeof o->control);
    if ((o->handshake = phoebus_handshake_new(attr->options, contact->host, port)) == NULL)
        return px_no_memory();
    if (phoebus_handshake_error(o->handshake) != NULL) {
        px_say_failed(o->handshake, o->destination);
        return px_error_of(o->handshake);
    }
    phoebus_options_get(attr->options, "gateway", gateway, sizeof gateway);
    o->meant_direct = *gateway != '\0' && phoebus_handshake_is_direct(o->handshake);
    result = globus_xio_contact_copy(&o->contact, contact);
    return result != GLOBUS_SUCCESS ? result : px_tcp_save(o->op, o->tcp, &o->saved);
}

static struct px_opening *blank(globus_xio_operation_t operation)
{
    struct px_opening *o = calloc(1, sizeof *o);

    if (o == NULL)
        return NULL;
    globus_mutex_init(&o->lock, NULL);
    o->references = 1;
    o->knock = -1;
    o->op = operation;
    o->below = globus_xio_operation_get_driver_handle(operation);
    return o;
}

/* Starts the timer of a prepared opening. If its preparation failed, frees it and returns that error. */
static globus_result_t begin(struct px_opening *o, globus_result_t prepared, struct px_opening **out)
{
    globus_reltime_t period;

    if (prepared == GLOBUS_SUCCESS) {
        GlobusTimeReltimeSet(period, 0, TICK_MS * 1000);
        prepared = globus_callback_register_periodic(&o->timer, &period, &period, tick, o);
    }
    if (prepared != GLOBUS_SUCCESS) {
        release(o);
        return prepared;
    }
    globus_mutex_lock(&o->lock);
    o->references++; /* the timer's */
    globus_mutex_unlock(&o->lock);
    *out = o;
    return GLOBUS_SUCCESS;
}

globus_result_t px_opening_new(const globus_xio_contact_t *contact, const px_attr *attr, globus_xio_operation_t operation,
                               struct px_opening **out)
{
    struct px_opening *o = blank(operation);
    void *own = NULL;
    globus_result_t result;

    if (o == NULL)
        return px_no_memory();
    result = attr ? GLOBUS_SUCCESS : px_attr_init(&own);
    if (result == GLOBUS_SUCCESS)
        result = prepare(o, contact, attr ? attr : own);
    px_attr_destroy(own);
    return begin(o, result, out);
}

globus_result_t px_opening_new_here(const px_attr *attr, globus_xio_operation_t operation, struct px_opening **out)
{
    struct px_opening *o = blank(operation);
    globus_result_t result = GLOBUS_SUCCESS;

    if (o == NULL)
        return px_no_memory();
    phoebus_options_get(attr->options, "congestion_control", o->control, sizeof o->control);
    if ((o->tcp = px_tcp_driver(operation)) == NULL)
        result = px_error(EPROTO, "the driver below is not tcp; expected a stack such as tcp,phoebus,gsi");
    else if ((o->options = phoebus_options_copy(attr->options)) == NULL)
        result = px_no_memory();
    else /* Both ends have the same stack, and its `security` is about the first gateway, which this end has not. */
        phoebus_options_set(o->options, "security", "none");
    return begin(o, result, out);
}

void px_opening_done(struct px_opening *o)
{
    px_forget(globus_callback_unregister(o->timer, timer_gone, o, NULL));
    release(o);
}
