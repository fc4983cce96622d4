/* The atomic operations that shared memory is touched with, each under one name.
 *
 * Every release store or swap and the acquire that pairs with it carry the same label in
 * brackets, [READY] for instance, so that a reader can find the other half.
 */
#ifndef MPKV_ATOMICS_H
#define MPKV_ATOMICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* An atomic with a lock keeps that lock in one process; the other would not see it. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free");
_Static_assert(ATOMIC_CHAR_LOCK_FREE == 2, "byte atomics must be lock-free");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "an atomic word must be 8 bytes");

typedef _Atomic uint64_t shared_u64;
typedef _Atomic uint8_t shared_u8;

/* Two lines: x86 fetches lines in pairs, so neighbours at 64 bytes still collide. */
#define MPKV_LINE 128

static inline uint64_t load_relaxed(const shared_u64 *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static inline uint64_t load_acquire(const shared_u64 *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

static inline void store_relaxed(shared_u64 *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

static inline void store_release(shared_u64 *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

/* The swaps put the value found into *expected when they fail. */
static inline bool swap_if_acquire(shared_u64 *word, uint64_t *expected, uint64_t value)
{
    return atomic_compare_exchange_strong_explicit(word, expected, value, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline bool swap_if_release(shared_u64 *word, uint64_t *expected, uint64_t value)
{
    return atomic_compare_exchange_strong_explicit(word, expected, value, memory_order_release,
                                                   memory_order_relaxed);
}

static inline uint64_t exchange_relaxed(shared_u64 *word, uint64_t value)
{
    return atomic_exchange_explicit(word, value, memory_order_relaxed);
}

static inline uint64_t add_relaxed(shared_u64 *word, uint64_t amount)
{
    return atomic_fetch_add_explicit(word, amount, memory_order_relaxed);
}

static inline uint64_t and_relaxed(shared_u64 *word, uint64_t mask)
{
    return atomic_fetch_and_explicit(word, mask, memory_order_relaxed);
}

static inline uint8_t byte_load_relaxed(const shared_u8 *byte)
{
    return atomic_load_explicit(byte, memory_order_relaxed);
}

static inline void byte_store_relaxed(shared_u8 *byte, uint8_t value)
{
    atomic_store_explicit(byte, value, memory_order_relaxed);
}

static inline void fence_acquire(void)
{
    atomic_thread_fence(memory_order_acquire);
}

static inline void fence_release(void)
{
    atomic_thread_fence(memory_order_release);
}

static inline void fence_seq_cst(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

#endif
