/* Starting a process that the kernel ends with the thread that starts it. */
#ifndef MPKV_SPAWN_H
#define MPKV_SPAWN_H

#include <stddef.h>
#include <sys/types.h>

/* `fds` stay open in the child under their own numbers, and nothing else but its standard error;
 * it reads from `null_fd`. */
struct spawn_plan {
    char **argv;
    char **environment;
    int *fds;
    size_t fd_count;
    int null_fd;
};

/* The pid, or -1 with errno set. */
pid_t spawn_helper(const struct spawn_plan *plan);

#endif
