/** The messages and services of `tidegate.v1`, generated from proto/tidegate/v1. */
export * from "../gen/tidegate/v1/admission_pb.js";
export * from "../gen/tidegate/v1/error_reason_pb.js";
export * from "../gen/tidegate/v1/flow_pb.js";
export * from "../gen/tidegate/v1/operator_pb.js";
export * from "../gen/tidegate/v1/selection_pb.js";
export * from "../gen/tidegate/v1/types_pb.js";
