from winnowrl.training.cli import main

main()
