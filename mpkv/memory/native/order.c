#include "order.h"

void order_init(struct order *order, struct order_link *links)
{
    *order = (struct order){.links = links};
    for (uint32_t class = 0; class < ORDER_CLASSES; class++)
        order->oldest[class] = order->newest[class] = NO_BLOCK;
}

static void join(struct order *order, uint32_t class, uint32_t older, uint32_t newer)
{
    if (older == NO_BLOCK)
        order->oldest[class] = newer;
    else
        order->links[older].newer = newer;
    if (newer == NO_BLOCK)
        order->newest[class] = older;
    else
        order->links[newer].older = older;
}

static void add_between(struct order *order, uint32_t class, uint32_t block, uint32_t older,
                        uint32_t newer)
{
    join(order, class, older, block);
    join(order, class, block, newer);
    order->length++;
}

void order_add_newest(struct order *order, uint32_t class, uint32_t block)
{
    add_between(order, class, block, order->newest[class], NO_BLOCK);
}

void order_add_oldest(struct order *order, uint32_t class, uint32_t block)
{
    add_between(order, class, block, NO_BLOCK, order->oldest[class]);
}

void order_add_older(struct order *order, uint32_t class, uint32_t block, uint32_t next)
{
    add_between(order, class, block, order->links[next].older, next);
}

void order_remove(struct order *order, uint32_t class, uint32_t block)
{
    join(order, class, order->links[block].older, order->links[block].newer);
    order->length--;
}
