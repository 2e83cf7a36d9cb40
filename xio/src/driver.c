/*
 * libglobus_xio_phoebus_driver.so (S4, S7, S10): a transform driver over the built-in TCP driver. On an outgoing
 * connection, it opens a session over Phoebus gateways. Once the session is open, it passes all bytes through. It
 * passes incoming connections through from the start, unless aware=1 makes this end take part in their sessions.
 *
 *   options.c  the option string              handle.c   open connections
 *   path.c     the direction of a path        accept.c   the accepting side
 *   attr.c     options and their errors       connect.c  the connecting side
 *   tcp.c      the driver below               shake.c    the handshake between XIO's callbacks
 *   say.c      reports                        opening.c  the time-out of an open
 *   error.c    Globus's error objects         knock.c    tells a listening peer that no connection will come
 *
 * libphoebus implements the session protocol. This driver uses only its public header, phoebus.h.
 */
#include "driver.h"

#include "attr.h"
#include "error.h"

#include "globus_common.h"
#include "globus_xio_load.h"

GlobusXIODeclareDriver(phoebus);

static int activate(void);
static int deactivate(void);

static globus_version_t version = {PHOEBUS_VERSION_MAJOR, PHOEBUS_VERSION_MINOR, 0, 0};

GlobusXIODefineModule(phoebus) = {"globus_xio_phoebus", activate, deactivate, NULL, NULL, &version, NULL};

/*
 * The instance of the TCP driver on which GridFTP sets attributes (buffers, interfaces, ranges of ports). XIO finds
 * attributes by the driver's address, so another instance would not have them. Only programs that use GridFTP have this
 * function.
 */
extern globus_xio_driver_t globus_io_compat_get_tcp_driver(void) __attribute__((weak));

/* Other programs get a TCP driver of their own for each instance of this driver. */
static globus_result_t own_tcp(globus_xio_driver_t driver, globus_xio_driver_t *tcp)
{
    void *data = NULL;
    globus_result_t result = globus_xio_driver_get_user_data(driver, &data);
    globus_xio_driver_t *own = data;

    if (result == GLOBUS_SUCCESS && *own == NULL)
        result = globus_xio_driver_load("tcp", own);
    if (result == GLOBUS_SUCCESS)
        *tcp = *own;
    return result;
}

/* A bare "phoebus" means "tcp,phoebus". */
static globus_result_t push(globus_xio_driver_t driver, globus_xio_stack_t stack)
{
    globus_xio_driver_t tcp = NULL;
    globus_result_t result;

    if (globus_io_compat_get_tcp_driver != NULL)
        tcp = globus_io_compat_get_tcp_driver();
    if (tcp == NULL && (result = own_tcp(driver, &tcp)) != GLOBUS_SUCCESS)
        return result;
    /* XIO refuses this if the stack already has a transport, which is correct. */
    px_forget(globus_xio_stack_push_driver(stack, tcp));
    return globus_xio_stack_push_driver(stack, driver);
}

static void destroy(globus_xio_driver_t driver)
{
    void *data = NULL;
    globus_xio_driver_t *own;

    px_forget(globus_xio_driver_get_user_data(driver, &data));
    own = data;
    if (own != NULL && *own != NULL)
        globus_xio_driver_unload(*own);
    free(own);
    globus_xio_driver_destroy(driver);
}

static globus_result_t create(globus_xio_driver_t *out)
{
    globus_xio_driver_t driver;
    globus_xio_driver_t *own = calloc(1, sizeof(globus_xio_driver_t));
    globus_result_t result;

    if (own == NULL)
        return px_no_memory();
    result = globus_xio_driver_init(&driver, "phoebus", own);
    if (result != GLOBUS_SUCCESS) {
        free(own);
        return result;
    }
    result = globus_xio_driver_set_transform(driver, px_open, px_close, px_read, px_write, px_handle_cntl, push);
    if (result == GLOBUS_SUCCESS)
        result = globus_xio_driver_set_server(driver, px_server_init, px_accept, px_server_destroy, px_no_cntl, px_no_cntl,
                                              px_link_destroy);
    if (result == GLOBUS_SUCCESS)
        result = globus_xio_driver_set_attr(driver, px_attr_init, px_attr_copy, px_attr_cntl, px_attr_destroy);
    /* Without a table of string options, XIO passes the string to px_attr_cntl() unchanged. */
    if (result != GLOBUS_SUCCESS) {
        destroy(driver);
        return result;
    }
    *out = driver;
    return GLOBUS_SUCCESS;
}

GlobusXIODefineDriver(phoebus, create, destroy);

static int activate(void)
{
    int result = globus_module_activate(GLOBUS_XIO_MODULE);

    if (result == GLOBUS_SUCCESS)
        GlobusXIORegisterDriver(phoebus);
    return result;
}

static int deactivate(void)
{
    GlobusXIOUnRegisterDriver(phoebus);
    return globus_module_deactivate(GLOBUS_XIO_MODULE);
}
