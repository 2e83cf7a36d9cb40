/*
 * The option string of a driver on a stack, "phoebus:gw=pg1/5006;user=ann@example.org" (S8), as its parts.
 */
#ifndef PX_OPTIONS_H
#define PX_OPTIONS_H

#include <stddef.h>

/* Longest option string: a path of 16 gateways with long names and two lists of destinations fit into a quarter of it. */
#define PX_OPTIONS_MAX 8192

/* The kinds of options. */
enum px_option {
    PX_SETTING,    /* an option of libphoebus, under libphoebus's name */
    PX_GATEWAY,    /* the first gateway, host/port */
    PX_PATH,       /* all gateways, separated by commas, as libphoebus wants them */
    PX_CREDENTIAL  /* the name of a credential that this host's administrator or user keeps */
};

/* Receives one option. `name` is libphoebus's name. On another result than 0, parsing stops and `why` has the error. */
typedef int (*px_option_fn)(void *arg, enum px_option what, const char *name, const char *value, char *why, size_t size);

/*
 * Parses `text`, and hands each option to `take`. Returns 0. On an error, `why` is one sentence without a full stop,
 * and the options after the wrong one are not parsed.
 *
 * The text is percent-decoded first. GCT's server has decoded it already, its client has not, and it must mean the same
 * at both. An option can therefore contain no percent sign: one that is left is an error. ';' separates options, and
 * '|' the parts of a list, since XIO splits a stack at each comma.
 */
int px_options_parse(const char *text, px_option_fn take, void *arg, char *why, size_t size);

#endif
