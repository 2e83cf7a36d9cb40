/*
 * The attributes that a stack holds for this driver.
 */
#ifndef PX_ATTR_H
#define PX_ATTR_H

#include "globus_xio_driver.h"

#include <phoebus.h>

typedef struct px_attr {
    phoebus_options *options; /* the stack's options override those of files and the environment */
    char *own;                /* this host's configured gateway; "" if there is none */
    char *text;               /* the last option string that was set; NULL if none was set */
    char *wrong;              /* the first error in the options; NULL if there is none */
} px_attr;

/* XIO calls these functions on the attributes. */
globus_result_t px_attr_init(void **attr);
globus_result_t px_attr_copy(void **to, void *from);
globus_result_t px_attr_destroy(void *attr);
globus_result_t px_attr_cntl(void *attr, int command, va_list arguments);

/* Returns the first error in the attributes, or success. Every operation with wrong attributes fails with it. */
globus_result_t px_attr_check(const px_attr *attr);

/* Whether both ends take part in the session (S5). */
int px_attr_is_aware(const px_attr *attr);

#endif
