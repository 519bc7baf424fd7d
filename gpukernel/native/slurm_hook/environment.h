// The variables of a task on a slice, made of those that it has.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gpukernel::slurm_hook {

// Returns the lines for Slurm ("export NAME=value", "unset NAME") that a recipe of
// gpukernel/engines/shards/recipe.py makes of the variables that `get` returns; a variable that is not set
// is empty.  What the recipe adds to a list is in it once, however often this is done.  A value with a line
// break cannot be told to Slurm: the task's output says so.
std::string task_lines(std::string_view recipe, const std::function<std::string(const std::string&)>& get);

}  // namespace gpukernel::slurm_hook
