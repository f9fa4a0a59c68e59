/* Seconds of a clock that goes on while the process stands still, at the least cost: a few ns, exact to some ms. */
#ifndef MANAGEDCONSUMER_CLOCK_H
#define MANAGEDCONSUMER_CLOCK_H

#ifdef _WIN32
#include <windows.h>

static double clock_seconds(void) { return (double)GetTickCount64() / 1000.0; }
static double precise_seconds(void) { return clock_seconds(); }
#else
#include <time.h>

#ifdef CLOCK_MONOTONIC_COARSE
#define MANAGEDCONSUMER_CLOCK CLOCK_MONOTONIC_COARSE
#else
#define MANAGEDCONSUMER_CLOCK CLOCK_MONOTONIC
#endif

static double clock_seconds(void) {
    struct timespec now;
    if (clock_gettime(MANAGEDCONSUMER_CLOCK, &now)) {
        return 0.0;
    }
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The clock of Python's time.monotonic(). */
static double precise_seconds(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now)) {
        return 0.0;
    }
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
#endif

#endif
