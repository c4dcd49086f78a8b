// nccl.h, in which the functions that came after the oldest NCCL (kOldestNccl) are weak: a program that was
// built with a newer header links with a library that has none of them, and starts with it. Nobody calls one
// before the version of the library was asked (refuse_copy_engines).
#pragma once

#include <nccl.h>

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#pragma weak ncclAlltoAll
#pragma weak ncclCommWindowDeregister
#pragma weak ncclCommWindowRegister
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
#pragma weak ncclPutSignal
#pragma weak ncclSignal
#pragma weak ncclWaitSignal
#endif
