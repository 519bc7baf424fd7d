// cuDNN's operation graphs and plans in the worker: made again, by the public backend API of the worker's
// library, from what the program's has (libraries/cudnn/plans.cpp says how that is written).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "libraries/cudnn/types.h"
#include "worker/libraries/libraries.h"

namespace gpukernel::worker {

// The functions of the backend API, and the descriptors that one object of ours has made.
class Backend {
  public:
    explicit Backend(const MathLibrary& library);
    ~Backend();
    Backend(const Backend&) = delete;

    bool there() const { return create_ && destroy_ && set_ && get_ && finish_; }
    int make(int kind, void*& descriptor);
    int set(void* descriptor, int name, int type, int64_t count, const void* elements) const {
        return set_(descriptor, name, type, count, elements);
    }
    int get(void* descriptor, int name, int type, int64_t room, int64_t& count, void* elements) const {
        return get_(descriptor, name, type, room, &count, elements);
    }
    int finish(void* descriptor) const { return finish_(descriptor); }

  private:
    int (*create_)(int, void**);
    int (*destroy_)(void*);
    int (*set_)(void*, int, int, int64_t, const void*);
    int (*get_)(void*, int, int, int64_t, int64_t*, void*);
    int (*finish_)(void*);
    std::vector<void*> made_;
};

// What the worker must know of a tensor itself.
struct GraphTensor {
    uint64_t bytes = 0;  // from its first element to behind its last
    bool by_value = false, outside = false;
};

struct Graph {
    explicit Graph(const MathLibrary& library) : backend(library) {}
    // Makes the descriptors that stand in the words of a call.
    int read(LibraryArguments& in);

    Backend backend;
    void* descriptor = nullptr;
    std::map<int64_t, GraphTensor> tensors;  // by their numbers

  private:
    int read_node(LibraryArguments& in, std::vector<void*>& nodes, bool last);
};

// A plan that was executed, or may be.
struct Plan {
    explicit Plan(const MathLibrary& library, HostCharge charge)
        : graph(library), charge(std::move(charge)) {}
    Graph graph;
    void* descriptor = nullptr;
    int64_t workspace = 0;
    uint64_t used = 0;  // when, in executions of the handle
    HostCharge charge;
};

// The plans of one handle, by the words that describe them.
struct Plans {
    std::map<std::string, std::shared_ptr<Plan>, std::less<>> all;
    uint64_t turn = 0;
};

// Questions about recurrent layers, and dropout's states (cudnn_recurrent.cpp).
int recurrent_sizes(LibraryArguments& in);
int recurrent_weights(LibraryArguments& in);
int dropout_states(LibraryArguments& in);
int dropout_set(LibraryArguments& in);

int read_plan(LibraryArguments& in, Plan& plan);

}  // namespace gpukernel::worker
