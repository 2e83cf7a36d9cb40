/*
 * What a stack's attributes hold for this driver.
 */
#ifndef PX_ATTR_H
#define PX_ATTR_H

#include "globus_xio_driver.h"

#include <phoebus.h>

typedef struct px_attr {
    phoebus_options *options; /* from files and the environment, and over them from the stack */
    char *own;                /* the gateway that this host is configured with; "" if with none */
    char *text;               /* the option string, as it was given last; NULL if none was */
    char *wrong;              /* the first thing that was wrong with one of them; NULL if nothing was */
} px_attr;

/* The functions of GLOBUS_XIO_DRIVER that XIO calls by these names. */
globus_result_t px_attr_init(void **attr);
globus_result_t px_attr_copy(void **to, void *from);
globus_result_t px_attr_destroy(void *attr);
globus_result_t px_attr_cntl(void *attr, int command, va_list arguments);

/* The error that everything fails with that is done with these attributes: the first thing that was wrong, or success. */
globus_result_t px_attr_check(const px_attr *attr);

/* Whether both ends take part in the session (S5). */
int px_attr_is_aware(const px_attr *attr);

#endif
