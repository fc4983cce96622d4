/* Starts helper processes that the kernel ends with the engine, whatever state they are in.
 *
 * The parent-death signal follows the thread that starts a process: it is sent when that thread
 * ends. It must be set before anything can stop the child, so between vfork and exec, which the
 * standard library has no way to do but by running Python there.
 */

#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif
#define FIRST_FD (STDERR_FILENO + 1)

/* What the child needs besides. */
struct birth {
    const struct spawn_plan *plan;
    pid_t parent;
    sigset_t mask;
};

/* Descriptors of libraries that do not mark theirs must not keep anything open over there. */
static void mark_all_close_on_exec(void)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, FIRST_FD, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
        return;
#endif
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    for (int fd = FIRST_FD; fd < (int)limit.rlim_cur; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Python's handlers must not run in the child, which has the parent's memory. What Python
 * ignores is not to be ignored over there; what whoever started the engine ignores, is. */
static void reset_signals(const sigset_t *mask)
{
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) != 0)
            continue;
        if (action.sa_handler != SIG_IGN || number == SIGPIPE || number == SIGXFSZ) {
            action = (struct sigaction){.sa_handler = SIG_DFL};
            sigaction(number, &action, NULL);
        }
    }
    sigprocmask(SIG_SETMASK, mask, NULL);
}

/* In the child, before exec: only system calls. Returns the errno of what failed. */
static int become_helper(const struct birth *birth)
{
    const struct spawn_plan *plan = birth->plan;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return errno;
    /* The engine may have died before the line above. */
    if (getppid() != birth->parent)
        _exit(1);
    reset_signals(&birth->mask);
    /* Whatever a library prints: the engine's own output is not for it. */
    if (dup2(plan->null_fd, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return errno;
    mark_all_close_on_exec();
    for (size_t i = 0; i < plan->fd_count; i++)
        if (fcntl(plan->fds[i], F_SETFD, 0) != 0)
            return errno;
    execve(plan->argv[0], plan->argv, plan->environment);
    return errno;
}

pid_t spawn_helper(const struct spawn_plan *plan)
{
    struct birth birth = {.plan = plan, .parent = getpid()};
    sigset_t all;
    volatile int failure = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &birth.mask);
    pid_t pid = vfork();
    if (pid == 0) {
        failure = become_helper(&birth);
        _exit(127);
    }
    int no_child = errno;
    pthread_sigmask(SIG_SETMASK, &birth.mask, NULL);
    if (pid < 0)
        errno = no_child;
    else if (failure != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        errno = failure;
        pid = -1;
    }
    return pid;
}
