/* A wall clock that can be set for one node: preloaded into every process of a job, it adds a number of seconds to the time of day, in the network namespace
   that is named in the file CLOCK_SHIFT points to (16 bytes: the namespace's inode, the seconds). The machine's own clock is not touched.

   gcc -shared -fPIC -o clock_shift.so clock_shift.c -ldl */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct shift {
    uint64_t network;
    double seconds;
};

static volatile struct shift *shift;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CLOCK_SHIFT");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *seen = mmap(NULL, sizeof(struct shift), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (seen != MAP_FAILED)
        shift = seen;
}

static double shifted(void) {
    struct stat own;
    if (!shift || shift->seconds == 0 || stat("/proc/self/ns/net", &own) != 0 || own.st_ino != shift->network)
        return 0;
    return shift->seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock)
        real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real_clock(clock, now);
    if (code == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += (time_t)shifted();
    return code;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    int code = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return code;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out)
        *out = exact.tv_sec;
    return exact.tv_sec;
}
