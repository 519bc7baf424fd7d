#include "worker/lease/freed_blocks.h"

#include <algorithm>

#include "worker/lease/lease.h"

namespace gpukernel::worker {

void FreedBlocks::use_device(CUdevice device) {
    if (lease_.cuda.cuDeviceGetDefaultMemPool(&pool_, device) != CUDA_SUCCESS) pool_ = nullptr;
}

CUresult FreedBlocks::free(CUdeviceptr address, CUstream stream, const void* owner) {
    uint64_t bytes;
    if (!lease_.retire(address, owner, bytes)) return CUDA_ERROR_INVALID_VALUE;
    kept_.push_back({address, bytes, stream, owner});
    uint64_t sum = 0;
    for (const Block& block : kept_) sum += block.bytes;
    if (kept_.size() > MOST_KEPT || (kept_.size() > FEW && sum > lease_.memory_limit() / 4)) {
        const auto middle = kept_.begin() + static_cast<std::ptrdiff_t>(kept_.size() / 2);
        const std::vector<Block> oldest(kept_.begin(), middle);
        kept_.erase(kept_.begin(), middle);
        give_to_driver(oldest);
        for (Batch& batch : batches_) record(batch);
        settle();
    }
    note();
    return CUDA_SUCCESS;
}

std::optional<CUdeviceptr> FreedBlocks::reuse(uint64_t bytes, CUstream stream, const void* owner) {
    for (auto it = kept_.rbegin(); it != kept_.rend(); ++it) {
        if (it->bytes != bytes || it->stream != stream || it->owner != owner) continue;
        const CUdeviceptr address = it->address;
        kept_.erase(std::next(it).base());
        lease_.revive(address);
        note();
        return address;
    }
    return std::nullopt;
}

// A block that the driver does not take stays an allocation of its owner's, which nobody can use.
void FreedBlocks::give_to_driver(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) {
        if (lease_.cuda.cuMemFreeAsync(block.address, block.stream) != CUDA_SUCCESS) continue;
        const uint64_t charged = lease_.detach(block.address);
        auto batch = std::find_if(batches_.rbegin(), batches_.rend(), [&](const Batch& one) {
            return one.stream == block.stream && !one.gone && !one.event && one.number == flushed_ + 1;
        });
        if (batch == batches_.rend()) {
            batches_.push_back({block.stream, nullptr, flushed_ + 1, {}});
            batch = batches_.rbegin();
        }
        batch->charges.push_back({charged, block.owner});
        pending_ += charged;
    }
    ++flushed_;
    note();
}

void FreedBlocks::flush(CUstream stream) {
    std::vector<Block> its;
    for (const Block& block : kept_)
        if (block.stream == stream) its.push_back(block);
    if (its.empty()) return;
    std::erase_if(kept_, [&](const Block& block) { return block.stream == stream; });
    give_to_driver(its);
}

void FreedBlocks::flush() {
    if (kept_.empty()) return;
    const std::vector<Block> all(kept_.begin(), kept_.end());
    kept_.clear();
    give_to_driver(all);
}

void FreedBlocks::before_destruction(CUstream stream) {
    flush(stream);
    for (Batch& batch : batches_)
        if (batch.stream == stream && !batch.gone) record(batch), batch.gone = true;
}

void FreedBlocks::record() {
    for (Batch& batch : batches_) record(batch);
}

bool FreedBlocks::record(Batch& batch) {
    if (batch.event) return true;
    if (batch.gone) return false;  // until the host waits for all streams
    CUevent event = nullptr;
    if (!events_.empty())
        event = events_.back(), events_.pop_back();
    else if (lease_.cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return false;
    if (lease_.cuda.cuEventRecord(event, batch.stream) != CUDA_SUCCESS) {
        events_.push_back(event);
        return false;
    }
    batch.event = event;
    return true;
}

uint64_t FreedBlocks::refund(Batch& batch) {
    uint64_t sum = 0;
    for (const Charge& charge : batch.charges) {
        lease_.refund(charge.owner, charge.bytes);
        sum += charge.bytes;
    }
    batch.charges.clear();
    pending_ -= sum;
    return sum;
}

void FreedBlocks::drop_empty() {
    for (const Batch& batch : batches_)
        if (batch.charges.empty() && batch.event) events_.push_back(batch.event);
    std::erase_if(batches_, [](const Batch& batch) { return batch.charges.empty(); });
    note();
}

uint64_t FreedBlocks::settle(bool may_wait) {
    std::vector<Batch*> over;
    for (Batch& batch : batches_)
        if ((may_wait ? record(batch) : batch.event != nullptr) &&
            lease_.cuda.cuEventQuery(batch.event) == CUDA_SUCCESS)
            over.push_back(&batch);
    if (over.empty()) return 0;
    // The driver's pool keeps freed memory until the host waits for something: it is the device's only now.
    if (pool_) lease_.cuda.cuMemPoolTrimTo(pool_, 0);
    uint64_t sum = 0;
    for (Batch* batch : over) sum += refund(*batch);
    drop_empty();
    if (!pending_) lease_.correct();
    lease_.freed_some();
    return sum;
}

void FreedBlocks::synchronized(uint64_t flushed, std::optional<CUstream> stream) {
    uint64_t sum = 0;
    for (Batch& batch : batches_)
        if (batch.number <= flushed && (!stream || (batch.stream == *stream && !batch.gone)))
            sum += refund(batch);
    drop_empty();
    if (!sum) return;
    if (!pending_) lease_.correct();
    lease_.freed_some();
}

void FreedBlocks::forget(const void* owner) {
    std::erase_if(kept_, [&](const Block& block) { return block.owner == owner; });
    note();
}

void FreedBlocks::settle(const void* owner) {
    for (Batch& batch : batches_) {
        for (const Charge& charge : batch.charges)
            if (charge.owner == owner) lease_.refund(owner, charge.bytes), pending_ -= charge.bytes;
        std::erase_if(batch.charges, [&](const Charge& charge) { return charge.owner == owner; });
    }
    drop_empty();
}

}  // namespace gpukernel::worker
