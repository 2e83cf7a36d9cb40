/*
 * Attributes of the driver (S8). The options of the stack override those of this host's configuration.
 *
 * XIO's callers ignore the error of a wrong option string. The attributes therefore keep the first error, and each
 * connection that is opened with them fails with it: a misspelt option must never lead to a direct transfer.
 */
#include "attr.h"

#include "error.h"
#include "options.h"
#include "path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Variable with the directory of credentials that a stack may name. Each is NAME.pem and NAME.key. */
#define CREDENTIALS "PHOEBUS_CREDENTIALS"

static px_attr *empty(void)
{
    return calloc(1, sizeof(px_attr));
}

globus_result_t px_attr_init(void **out)
{
    px_attr *attr = empty();
    char own[512];

    if (attr == NULL || (attr->options = phoebus_options_new()) == NULL) {
        px_attr_destroy(attr);
        return px_no_memory();
    }
    /* The options keep the first error, and report it when they are used. */
    phoebus_options_load(attr->options);
    /* XIO cannot reopen a closed handle, so the driver follows no redirect. The error names the better gateway. */
    phoebus_options_set(attr->options, "redirects", "0");
    phoebus_options_get(attr->options, "gateway", own, sizeof own);
    if ((attr->own = strdup(own)) == NULL) {
        px_attr_destroy(attr);
        return px_no_memory();
    }
    *out = attr;
    return GLOBUS_SUCCESS;
}

globus_result_t px_attr_copy(void **to, void *from)
{
    const px_attr *attr = from;
    px_attr *copy = empty();

    if (copy == NULL || (copy->options = phoebus_options_copy(attr->options)) == NULL
        || (copy->own = strdup(attr->own)) == NULL || (attr->text && (copy->text = strdup(attr->text)) == NULL)
        || (attr->wrong && (copy->wrong = strdup(attr->wrong)) == NULL)) {
        px_attr_destroy(copy);
        return px_no_memory();
    }
    *to = copy;
    return GLOBUS_SUCCESS;
}

globus_result_t px_attr_destroy(void *gone)
{
    px_attr *attr = gone;

    if (attr != NULL) {
        phoebus_options_free(attr->options);
        free(attr->own);
        free(attr->text);
        free(attr->wrong);
        free(attr);
    }
    return GLOBUS_SUCCESS;
}

static int set(px_attr *attr, const char *name, const char *value, char *why, size_t size)
{
    if (phoebus_options_set(attr->options, name, value) == PHOEBUS_OK)
        return 0;
    snprintf(why, size, "%s", phoebus_error_message(phoebus_options_error(attr->options)));
    return -1;
}

/* Whoever may set a stack can name a credential. Only the directory that this host configures is searched. */
static int credential(px_attr *attr, const char *name, char *why, size_t size)
{
    const char *directory = secure_getenv(CREDENTIALS);
    char file[1024];

    if (directory == NULL || *directory == '\0') {
        snprintf(why, size, "credential is \"%.64s\", but " CREDENTIALS " names no directory of credentials", name);
        return -1;
    }
    if (*name == '.' || strchr(name, '/') != NULL) {
        snprintf(why, size, "credential is \"%.64s\"; expected the name of a credential, and no file", name);
        return -1;
    }
    if (snprintf(file, sizeof file, "%s/%s.pem", directory, name) >= (int)sizeof file) {
        snprintf(why, size, "the name of credential \"%.64s\" is too long", name);
        return -1;
    }
    if (set(attr, "certificate", file, why, size) != 0)
        return -1;
    strcpy(strrchr(file, '.'), ".key");
    return set(attr, "key", file, why, size);
}

/* Reverses the path that was just set if it ends at this host's own gateway. */
static int enter(px_attr *attr, char *why, size_t size)
{
    char path[PX_OPTIONS_MAX];

    if (phoebus_options_get(attr->options, "path", path, sizeof path) >= sizeof path) {
        snprintf(why, size, "the path is too long");
        return -1;
    }
    return px_path_enter(path, attr->own, why, size) != 0 ? -1 : set(attr, "path", path, why, size);
}

static int take(void *arg, enum px_option what, const char *name, const char *value, char *why, size_t size)
{
    px_attr *attr = arg;

    switch (what) {
    case PX_CREDENTIAL:
        return credential(attr, value, why, size);
    case PX_PATH:
        return set(attr, name, value, why, size) != 0 ? -1 : enter(attr, why, size);
    case PX_GATEWAY:
    case PX_SETTING:
        break;
    }
    return set(attr, name, value, why, size);
}

static void set_string(px_attr *attr, const char *text)
{
    char why[1024] = "";

    free(attr->text);
    attr->text = strdup(text);
    if (px_options_parse(text, take, attr, why, sizeof why) != 0 && attr->wrong == NULL)
        attr->wrong = strdup(*why ? why : "no memory");
}

globus_result_t px_attr_check(const px_attr *attr)
{
    const phoebus_error *error = phoebus_options_error(attr->options);

    if (attr->wrong != NULL)
        return px_error(EINVAL, "%s", attr->wrong);
    if (error != NULL)
        return px_error(phoebus_error_errno(error), "%s", phoebus_error_message(error));
    return GLOBUS_SUCCESS;
}

int px_attr_is_aware(const px_attr *attr)
{
    char value[2];

    phoebus_options_get(attr->options, "aware", value, sizeof value);
    return *value == '1';
}

globus_result_t px_attr_cntl(void *arg, int command, va_list arguments)
{
    GlobusXIOName(px_attr_cntl);
    px_attr *attr = arg;

    switch (command) {
    case GLOBUS_XIO_SET_STRING_OPTIONS: {
        const char *text = va_arg(arguments, const char *);
        set_string(attr, text ? text : "");
        return px_attr_check(attr);
    }
    case GLOBUS_XIO_GET_STRING_OPTIONS: {
        char **out = va_arg(arguments, char **);
        *out = strdup(attr->text ? attr->text : "");
        return *out == NULL ? px_no_memory() : GLOBUS_SUCCESS;
    }
    default:
        return GlobusXIOErrorInvalidCommand(command);
    }
}
