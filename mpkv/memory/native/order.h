/* The READY blocks of a tier in one order of last use for each class, private to the engine. */
#ifndef MPKV_ORDER_H
#define MPKV_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger.h"

#define ORDER_CLASSES 11

struct order_link {
    uint32_t older;
    uint32_t newer;
};

struct order {
    struct order_link *links; /* one per block; meaningful while it is in an order */
    uint32_t oldest[ORDER_CLASSES];
    uint32_t newest[ORDER_CLASSES];
    uint32_t length; /* of all classes together */
};

void order_init(struct order *order, struct order_link *links);
void order_add_newest(struct order *order, uint32_t class, uint32_t block);
void order_add_oldest(struct order *order, uint32_t class, uint32_t block);

/* `next` must be in the order of `class`; `block` comes to stand just before it. */
void order_add_older(struct order *order, uint32_t class, uint32_t block, uint32_t next);
void order_remove(struct order *order, uint32_t class, uint32_t block);

#endif
