"""Operations of TensorFlow graphs that may run: arithmetic, shapes, control flow, variables. One list, in one place.

An untrusted graph may read and write files, open connections or call Python functions. So every operation that a run
can reach is compared with ALLOWED before anything runs: data and control inputs, branches, loop bodies and called
functions included. Endless loops are not recognised; callers limit the time of a run of LOOPS.
"""

import graphlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_VALUES = """
Const Placeholder PlaceholderWithDefault PlaceholderV2 Identity IdentityN Snapshot StopGradient PreventGradient NoOp
EnsureShape Shape ShapeN Size Rank Reshape ExpandDims Squeeze Fill ZerosLike OnesLike Range LinSpace BroadcastTo
BroadcastArgs BroadcastGradientArgs Cast Bitcast Pack Unpack Concat ConcatV2 ConcatOffset Split SplitV Slice
StridedSlice Tile Pad PadV2 MirrorPad Transpose ConjugateTranspose InvertPermutation Reverse ReverseV2 ReverseSequence
Roll Gather GatherV2 GatherNd ScatterNd TensorScatterUpdate TensorScatterAdd TensorScatterSub TensorScatterMax
TensorScatterMin TensorStridedSliceUpdate DynamicPartition DynamicStitch ParallelDynamicStitch OneHot Where Select
SelectV2 Unique UniqueV2 UniqueWithCounts ListDiff TopK TopKV2 NthElement ArgMax ArgMin Diag DiagPart MatrixDiag
MatrixDiagV2 MatrixDiagV3 MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixSetDiag MatrixSetDiagV2
MatrixSetDiagV3 MatrixBandPart SpaceToDepth DepthToSpace SpaceToBatchND BatchToSpaceND UnravelIndex
LowerBound UpperBound Bucketize
"""
_ARITHMETIC = """
Abs Acos Acosh Add AddN AddV2 AccumulateNV2 Asin Asinh Atan Atan2 Atanh Ceil ClipByValue Cos Cosh Cross Cumprod Cumsum
CumulativeLogsumexp Digamma Div DivNoNan Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Igamma Igammac Inv
Reciprocal IsFinite IsInf IsNan Lgamma Log Log1p Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter Pow RealDiv Rint
Round Rsqrt Sigmoid Sign Sin Sinh Sqrt Square SquaredDifference Sub Tan Tanh TruncateDiv TruncateMod Xdivy Xlog1py
Xlogy Zeta Polygamma Betainc Equal NotEqual ApproximateEqual Greater GreaterEqual Less LessEqual LogicalAnd LogicalNot
LogicalOr BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift All Any Max Min Mean Prod Sum EuclideanNorm
SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
UnsortedSegmentSum Bincount DenseBincount
"""
_LINEAR_ALGEBRA = """
MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum MatrixDeterminant LogMatrixDeterminant MatrixInverse MatrixSolve
MatrixTriangularSolve Cholesky Qr Svd SelfAdjointEigV2 L2Loss
"""
_LAYERS = """
BiasAdd BiasAddV1 Elu LeakyRelu Relu Relu6 Selu Softplus Softsign Softmax LogSoftmax Conv Conv2D Conv3D
DepthwiseConv2dNative Dilation2D AvgPool AvgPool3D MaxPool MaxPoolV2 MaxPool3D MaxPoolWithArgmax LRN FusedBatchNorm
FusedBatchNormV2 FusedBatchNormV3 BatchNormWithGlobalNormalization SoftmaxCrossEntropyWithLogits
SparseSoftmaxCrossEntropyWithLogits BlockLSTM BlockLSTMV2 LSTMBlockCell GRUBlockCell InTopK InTopKV2
FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel
"""
_RANDOM = """
RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal Multinomial StatelessMultinomial
StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomUniformInt StatelessRandomNormal
StatelessRandomNormalV2 StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomGetAlg
"""
"""For an inactive dropout, or a head for exploration that an actor's output does not depend on."""
_CONTROL_FLOW = """
Switch Merge Enter Exit NextIteration LoopCond ControlTrigger If StatelessIf While StatelessWhile Case StatelessCase
PartitionedCall StatefulPartitionedCall Assert FakeParam OptionalNone OptionalFromValue OptionalHasValue
OptionalGetValue EmptyTensorList TensorListReserve TensorListFromTensor TensorListStack
TensorListGetItem TensorListSetItem TensorListPushBack TensorListPopBack TensorListLength TensorListElementShape
TensorListConcatV2 TensorListGather TensorArrayV3 TensorArrayReadV3 TensorArrayWriteV3 TensorArrayGatherV3
TensorArrayScatterV3 TensorArraySizeV3 TensorArrayCloseV3 TensorArrayConcatV3 TensorArraySplitV3
"""
"""Control flow and lists of tensors; the functions that they call are checked, too."""
_VARIABLES = """
VarHandleOp ReadVariableOp VarIsInitializedOp
VariableShape ResourceGather ResourceGatherNd VariableV2 Variable IsVariableInitialized
"""
ALLOWED = frozenset(
    " ".join((_VALUES, _ARITHMETIC, _LINEAR_ALGEBRA, _LAYERS, _RANDOM, _CONTROL_FLOW, _VARIABLES)).split()
)
"""They reach no files, connections, Python, text, queues, tables or datasets, and change no variable."""
RESTORE = ALLOWED | {
    *("RestoreV2", "Restore", "Assign", "AssignVariableOp", "StringJoin", "ShardedFilename", "StaticRegexFullMatch"),
}
"""The allowed operations, and those that restore a model's variables from its own files."""
INFERENCE = RESTORE - set(_RANDOM.split())
"""The operations that an exported model may have."""
VARIABLE_NODES = frozenset(("VarHandleOp", "VariableV2", "Variable"))
"""The operations that hold a variable."""
LOOPS = frozenset(("While", "StatelessWhile", "Enter", "NextIteration"))
"""The allowed operations that may run their bodies without end."""
MAX_INLINED_SIZE = 1 << 64
"""Up to here the nodes of an inlined function are counted."""
INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op", "table_initializer", "local_init_op")
"""TensorFlow runs their operations when it loads a SavedModel, and the operation of INIT_SIGNATURE."""
INIT_SIGNATURE = "__saved_model_init_op"


def run_by_loading(meta_graph: Any, restores: bool = True) -> list[str]:
    """The nodes and tensors that TensorFlow runs when it loads a SavedModel.

    Args:
        meta_graph: a MetaGraphDef or our subset.
        restores: TensorFlow reads values of variables, which it does if the SavedModel has variables/variables.index.
    """
    restore = meta_graph.saver_def.restore_op_name
    names = [restore] if restore and restores else []
    for collection in INIT_COLLECTIONS:
        names += (
            meta_graph.collection_def[collection].node_list.value if collection in meta_graph.collection_def else []
        )
    if INIT_SIGNATURE in meta_graph.signature_def:
        names += [output.name for output in meta_graph.signature_def[INIT_SIGNATURE].outputs.values()]
    return names


class Closure:
    """The operations that a run of a graph can reach. Works on TensorFlow's GraphDef and on our subset of it."""

    def __init__(self, graph: Any) -> None:
        """`graph`: a GraphDef."""
        self._nodes: Mapping[str, Any] = {node.name: node for node in graph.node}
        self._functions: Mapping[str, Any] = {function.signature.name: function for function in graph.library.function}
        self._implementations: dict[bytes, list[str]] = {}
        """Interface (attribute api_implements) -> functions that implement it."""
        for name, function in self._functions.items():
            if "api_implements" in function.attr:
                self._implementations.setdefault(function.attr["api_implements"].s, []).append(name)

    def of_nodes(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """(operation, node) of everything that these nodes or tensors of the main graph depend on, functions
        included."""
        pending = [_node_of(name) for name in names]
        seen = set[str]()
        functions = set[str]()
        while pending:
            name = pending.pop()
            if name in seen or name not in self._nodes:
                continue
            seen.add(name)
            node = self._nodes[name]
            pending += map(_node_of, node.input)
            yield node.op, node.name
            if self._functions:  # exported models have none, and 1,000 are checked at a server's start
                yield from self.of_functions([node.op, *_called(node)], functions)

    def of_functions(self, names: Iterable[str], seen: set[str]) -> Iterator[tuple[str, str]]:
        """(operation, node) of everything in these functions; names that are not functions are skipped.

        `seen`: functions that are left out; those that are returned are added.
        """
        pending = list(names)
        while pending:
            function = self._functions.get(pending.pop())
            if function is None or function.signature.name in seen:
                continue
            seen.add(function.signature.name)
            # TensorFlow may run another function of the same interface in its place
            interface = function.attr["api_implements"].s if "api_implements" in function.attr else b""
            pending += self._implementations.get(interface, ())
            for node in function.node_def:
                pending += [node.op, *_called(node)]
                yield node.op, f"{function.signature.name}/{node.name}"

    def inlined_size(self) -> int:
        """The number of nodes if every call is replaced by the nodes of its function; raises graphlib.CycleError for
        recursion.

        TensorFlow inlines calls, so a few functions that call each other twice can take any time and memory. The size
        of a function is counted up to MAX_INLINED_SIZE, because the numbers themselves would grow with every call.
        """
        calls = {
            name: [called for node in function.node_def for called in self._callees(node)]
            for name, function in self._functions.items()
        }
        sizes: dict[str, int] = {}
        for name in graphlib.TopologicalSorter(calls).static_order():
            size = len(self._functions[name].node_def) + sum(sizes[called] for called in calls[name])
            sizes[name] = min(size, MAX_INLINED_SIZE)
        called = (called for node in self._nodes.values() for called in self._callees(node)) if sizes else ()
        return len(self._nodes) + sum(sizes[name] for name in called)

    def _callees(self, node: Any) -> list[str]:
        """The functions that an operation calls, and those that TensorFlow may run in their place."""
        names = [name for name in (node.op, *_called(node)) if name in self._functions]
        interfaces = {
            self._functions[name].attr["api_implements"].s
            for name in names
            if "api_implements" in self._functions[name].attr
        }
        return [
            *names,
            *(name for interface in interfaces for name in self._implementations[interface] if name not in names),
        ]

    def refused(self, operations: Iterable[tuple[str, str]], allowed: frozenset[str] = ALLOWED) -> dict[str, str]:
        """The operations that may not run, each with the node that was found first; function calls themselves are
        allowed."""
        found: dict[str, str] = {}
        for operation, node in operations:
            if operation not in allowed and operation not in self._functions:
                found.setdefault(operation, node)
        return found


def _node_of(name: str) -> str:
    """The node of an input or a tensor: `^node`, `node:1`, `node:output:0`."""
    return name.removeprefix("^").partition(":")[0]


def _called(node: Any) -> list[str]:
    """The functions that an operation calls: branches, loop bodies, conditions, and functions passed to these."""
    called, pending = [], [node.attr]
    while pending:
        for attribute in pending.pop().values():
            functions = [attribute.func] if attribute.HasField("func") else []
            if attribute.HasField("list"):
                functions += attribute.list.func
            called += [function.name for function in functions]
            pending += [function.attr for function in functions]
    return called
