// cuRAND in the user's program: nothing that a generator is set to costs a message.
#include "libraries/curand/generator.h"
#include "libraries/queued_call.h"

namespace gpukernel::libraries::curand {

namespace {
constexpr uint32_t LIBRARY = library_number(CURAND, GPUKERNEL_MAJOR);
}

int create(void** place, int type) {
    const uint64_t word = static_cast<uint64_t>(type);
    return create_handle(place, LIBRARY, "curandCreateGenerator", {&word, 1});
}
int destroy(void* generator) { return destroy_handle(generator, LIBRARY); }

int generate(StreamHandle& handle, Generator& generator, Kind kind, const Order& order) {
    QueuedCall call(&handle, LIBRARY, "curandGenerate", kind);
    if (!call.ready()) return call.status();
    const GeneratorSettings& settings = generator;
    call.bytes(&settings, sizeof settings);
    call.bytes(&order, sizeof order);
    return call.queue();
}

}  // namespace gpukernel::libraries::curand
