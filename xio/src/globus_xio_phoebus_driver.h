/*
 * For programs that use the driver's commands with globus_xio_handle_cntl(). Its options are set as a string
 * (GLOBUS_XIO_SET_STRING_OPTIONS, globus_xio_attr_cntl_str()); globus-xio-phoebus(7) lists them.
 */
#ifndef GLOBUS_XIO_PHOEBUS_DRIVER_H
#define GLOBUS_XIO_PHOEBUS_DRIVER_H

typedef enum {
    /*
     * handle_cntl, char **report_out: the session's report, a JSON object. The caller frees it with free(3). The report
     * is empty on an accepting side that takes no part in the session (aware=0).
     */
    GLOBUS_XIO_PHOEBUS_GET_REPORT = 1
} globus_xio_phoebus_cmd_t;

#endif
