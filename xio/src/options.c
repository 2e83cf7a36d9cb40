/*
 * The option string of a driver on a stack (S8). GCT ignores a driver's error about its options. The caller therefore
 * keeps the error, and fails each connection that is opened with the options.
 */
#include "options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct option {
    const char *key;
    enum px_option what;
    const char *name; /* libphoebus's name */
    int list;         /* whether the value is a list, separated by '|' */
};

/*
 * No option names a file. Any client of a server can set a stack, and only the administrator may name files.
 */
enum { GW, PATH }; /* indices of the first two, which exclude each other */
static const struct option OPTIONS[] = {
    [GW] = {"gw", PX_GATEWAY, "gateway", 0},
    [PATH] = {"path", PX_PATH, "path", 1},
    {"user", PX_SETTING, "user", 0},
    {"credential", PX_CREDENTIAL, "credential", 0},
    {"security", PX_SETTING, "security", 0},
    {"first_hop", PX_SETTING, "first_hop", 0},
    {"transport", PX_SETTING, "transport", 0},
    {"protection", PX_SETTING, "protection", 0},
    {"rate", PX_SETTING, "rate", 0},
    {"buffer", PX_SETTING, "buffer", 0},
    {"streams", PX_SETTING, "streams", 0},
    {"only", PX_SETTING, "only", 1},
    {"except", PX_SETTING, "except", 1},
    {"fallback", PX_SETTING, "fallback", 0},
    {"cc", PX_SETTING, "congestion_control", 0},
    {"connect_timeout", PX_SETTING, "connect_timeout", 0},
    {"open_timeout", PX_SETTING, "open_timeout", 0},
    {"aware", PX_SETTING, "aware", 0},
};
#define COUNT (sizeof OPTIONS / sizeof OPTIONS[0])

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Percent-decodes in place. */
static int decode(char *text, char *why, size_t size)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; from++) {
        char c = *from;
        if (c == '%') {
            int high = hex(from[1]);
            int low = high < 0 ? -1 : hex(from[2]);
            if (low < 0) {
                snprintf(why, size, "%%%.2s in the options is no escape; expected %% and two hexadecimal digits",
                         from + 1);
                return -1;
            }
            c = (char)(high * 16 + low);
            from += 2;
        }
        if (iscntrl((unsigned char)c) || c == '%') {
            snprintf(why, size, "the options contain a %s, which is not allowed",
                     c == '%' ? "percent sign" : "control character");
            return -1;
        }
        *to++ = c;
    }
    *to = '\0';
    return 0;
}

static int unknown(const char *key, char *why, size_t size)
{
    int at = snprintf(why, size, "\"%.64s\" is no option; expected one of", key);
    for (size_t i = 0; i < COUNT && at >= 0 && (size_t)at < size; i++)
        at += snprintf(why + at, size - (size_t)at, "%s %s", i == 0 ? "" : ",", OPTIONS[i].key);
    return -1;
}

/* A stack says "direct" or "none". libphoebus has a switch. */
static const char *fallback(const char *value)
{
    if (strcmp(value, "direct") == 0)
        return "1";
    return strcmp(value, "none") == 0 ? "0" : NULL;
}

static int one(const struct option *option, char *value, px_option_fn take, void *arg, char *why, size_t size)
{
    const char *meant = value;
    if (*value == '\0') {
        snprintf(why, size, "%s has no value", option->key);
        return -1;
    }
    if (option->list)
        for (char *bar = strchr(value, '|'); bar != NULL; bar = strchr(bar, '|'))
            *bar = ',';
    if (strcmp(option->key, "fallback") == 0 && (meant = fallback(value)) == NULL) {
        snprintf(why, size, "fallback is \"%.64s\"; expected direct or none", value);
        return -1;
    }
    return take(arg, option->what, option->name, meant, why, size);
}

int px_options_parse(const char *text, px_option_fn take, void *arg, char *why, size_t size)
{
    char copy[PX_OPTIONS_MAX];
    unsigned given = 0;
    size_t len = strlen(text);

    if (len >= sizeof copy) {
        snprintf(why, size, "the options are longer than %d bytes", PX_OPTIONS_MAX - 1);
        return -1;
    }
    memcpy(copy, text, len + 1);
    if (decode(copy, why, size) != 0)
        return -1;
    for (char *key = copy, *next; key != NULL; key = next) {
        size_t i;
        next = strchr(key, ';');
        if (next != NULL)
            *next++ = '\0';
        if (*key == '\0')
            continue;
        char *value = strchr(key, '=');
        if (value == NULL) {
            snprintf(why, size, "\"%.64s\" in the options has no value; expected name=value", key);
            return -1;
        }
        *value++ = '\0';
        for (i = 0; i < COUNT && strcmp(OPTIONS[i].key, key) != 0; i++)
            ;
        if (i == COUNT)
            return unknown(key, why, size);
        if (given & 1u << i) {
            snprintf(why, size, "%s is given twice", key);
            return -1;
        }
        given |= 1u << i;
        if (one(&OPTIONS[i], value, take, arg, why, size) != 0)
            return -1;
    }
    if (given & 1u << GW && given & 1u << PATH) {
        snprintf(why, size, "gw and path are both given; expected one of them");
        return -1;
    }
    return 0;
}
