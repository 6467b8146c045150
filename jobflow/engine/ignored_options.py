"""Options of older programs without an effect here, accepted with a notice.

The key of each row is the accepted type, followed by the default of a call without an argument, unless the default is None.
"""

IGNORED: dict[str, dict[str, str]] = {
    "config": {
        "bool": """enable_model_io_v2 thread_enable_local_message_queue collective_boxing.nccl_enable_all_to_all
            collective_boxing.nccl_enable_mixed_fusion collective_boxing.nccl_fusion_all_gather collective_boxing.nccl_fusion_all_reduce
            collective_boxing.nccl_fusion_all_reduce_use_buffer collective_boxing.nccl_fusion_broadcast collective_boxing.nccl_fusion_reduce
            collective_boxing.nccl_fusion_reduce_scatter""",
        "bool = True": """use_rdma enable_tensor_float_32_compute collect_act_event enable_mem_chain_merge enable_numa_aware_cuda_malloc_host
            save_downloaded_file_to_local_fs collective_boxing.enable_fusion""",
        "bool = False": "nccl_use_compute_stream disable_group_boxing_by_dst_parallel",
        "int": """comm_net_worker_num compute_thread_pool_size max_mdsave_worker_num persistence_buf_byte rdma_mem_block_mbyte
            rdma_recv_msg_buf_mbyte reserved_device_mem_mbyte reserved_host_mem_mbyte collective_boxing.nccl_fusion_max_ops
            collective_boxing.nccl_fusion_threshold_mb collective_boxing.nccl_num_streams collective_boxing.num_callback_threads""",
        "str": "load_library load_library_now",
    },
    "env": {"int": "data_port logbuflevel logtostderr", "bool = True": "grpc_use_no_signal"},
    "function_config": {
        "bool = True": """prune_parallel_cast_ops prune_cast_to_static_shape_ops prune_amp_white_identity_ops
            do_parallel_cast_before_widening_type_cast enable_fuse_add_to_output enable_fuse_cast_scale enable_fuse_model_update_ops
            enable_gradients_stats_aggregation enable_cudnn_fused_normalization_add_relu enable_cudnn cudnn_conv_heuristic_search_algo
            cudnn_conv_use_deterministic_algo_only cudnn_conv_enable_true_half enable_true_half_config_when_conv cudnn_conv_enable_pseudo_half
            enable_cudnn_conv_pseudo_half enable_reused_mem enable_inplace use_xla_jit use_tensorrt allow_cpu_return_op
            enable_inplace_in_reduce_struct enable_nccl use_nccl_inter_node_communication use_boxing_v2
            enable_all_reduce_group all_reduce_fp16 disable_all_reduce_sequence enable_keep_header_only enable_float_compute_for_half_gemm
            use_memory_allocation_algorithm_v2 enable_ssp tensorrt.use_fp16 tensorrt.use_int8
            static_mem_alloc_policy_white_list.policy_mem_size_first static_mem_alloc_policy_white_list.policy_mutual_exclusion_first
            static_mem_alloc_policy_white_list.policy_time_line static_mem_alloc_algo_white_list.show""",
        "any": """cudnn_buf_limit_mbyte cudnn_conv_force_fwd_algo cudnn_conv_force_bwd_data_algo cudnn_conv_force_bwd_filter_algo
            concurrency_width exp_run_conf all_reduce_group_num all_reduce_lazy_ratio all_reduce_group_min_mbyte all_reduce_group_size_warmup
            non_distributed_optimizer_group_size_mbyte tensorrt.int8_calibration
            static_mem_alloc_policy_white_list.has
            static_mem_alloc_policy_white_list.add static_mem_alloc_policy_white_list.remove""",
    },
    "nn.Graph": {
        "any": """allow_fuse_model_update_ops allow_fuse_add_to_output allow_fuse_cast_scale set_outputs_buffer_size enable_multi_tensor_update
            enable_fused_model_update_cast enable_straighten_algorithm enable_compress_memory enable_choose_best_memory_allocation
            enable_cudnn_conv_heuristic_search_algo enable_cudnn_fused_normalization_add_relu enable_auto_parallel
            enable_auto_parallel_ignore_user_sbp_config enable_auto_parallel_trunk_algo enable_auto_parallel_sbp_collector
            set_auto_parallel_computation_cost_ratio set_auto_parallel_wait_time set_auto_memory_strategy allow_auto_memory"""
    },
}
